set -u
export SPOTRUN_RUN SPOTRUN_RUN_UID SPOTRUN_LAUNCH
export SPOTRUN_INSTANCE_DIR="${SPOTRUN_INSTANCE_DIR:-/var/lib/spotrun}"
SPOTRUN_RUN="$(base64 --decode <<<"${SPOTRUN_RUN_URI_BASE64}")"

# The time-to-live comes first. It counts on the monotonic clock from the boot, and ends the instance even if everything
# else has died: a shutdown from inside terminates the instance. An instance that cannot arm it powers off.
if ! systemd-run --unit=spotrun-time-to-live --on-boot="${SPOTRUN_TIME_TO_LIVE_S}s" \
    --timer-property=AccuracySec=1s systemctl poweroff; then
    echo "spotrun: the time-to-live cannot be armed: power off"
    systemctl poweroff
    exit 1
fi
echo "spotrun: launch ${SPOTRUN_LAUNCH} of run ${SPOTRUN_RUN_UID} powers off ${SPOTRUN_TIME_TO_LIVE_S} s after its boot"

if ! command -v aws >/dev/null; then
    echo "spotrun: error: this image has no awscli, which fetches the run's folder: install it in the image, or name" \
        "another image by aws.image_id or aws.image_parameter: power off"
    systemctl poweroff
    exit 1
fi

# All of AWS recognises a new role only after some seconds.
umask 077
mkdir -p "${SPOTRUN_INSTANCE_DIR}/boot"
for pause in 1 2 4 8 16 32 0; do
    aws s3 cp --recursive --only-show-errors --cli-connect-timeout=10 --cli-read-timeout=60 "${SPOTRUN_RUN}/boot/" \
        "${SPOTRUN_INSTANCE_DIR}/boot/" && break
    sleep "${pause}"
done
if [[ ! -e "${SPOTRUN_INSTANCE_DIR}/boot/start.sh" ]]; then
    echo "spotrun: error: the run's folder cannot be read: power off"
    systemctl poweroff
    exit 1
fi

# The agent runs as a service. When the service ends for any reason, the instance powers off. If the kernel ends a
# training for lack of memory, the service continues (OOMPolicy), and the agent handles the loss.
systemd-run --unit=spotrun --property="ExecStopPost=systemctl poweroff" --property=LimitNOFILE=65536 \
    --property=OOMPolicy=continue \
    --setenv=SPOTRUN_RUN --setenv=SPOTRUN_RUN_UID --setenv=SPOTRUN_LAUNCH --setenv=SPOTRUN_INSTANCE_DIR \
    --setenv=HOME=/root --setenv=PATH /bin/bash "${SPOTRUN_INSTANCE_DIR}/boot/start.sh" || systemctl poweroff
