set -u
export SPOTRUN_RUN SPOTRUN_RUN_UID SPOTRUN_LAUNCH SPOTRUN_NOTICE_S
export SPOTRUN_INSTANCE_DIR="${SPOTRUN_INSTANCE_DIR:-/var/lib/spotrun}"
SPOTRUN_RUN="$(base64 --decode <<<"${SPOTRUN_RUN_URI_BASE64}")"

# Compute Engine executes this script at each boot, but an instance boots only once. The agent's state before a reboot
# was in memory, and a runner that has seen the instance switched off has launched another one. If a user calls this
# script in the same boot, it does nothing.
boot_id="$(</proc/sys/kernel/random/boot_id)"
if [[ -e "${SPOTRUN_INSTANCE_DIR}/boot-id" ]]; then
    [[ "$(<"${SPOTRUN_INSTANCE_DIR}/boot-id")" == "${boot_id}" ]] && exit 0
    echo "spotrun: launch ${SPOTRUN_LAUNCH} has booted before: power off"
    systemctl poweroff
    exit 1
fi

# The time-to-live comes first. Compute Engine enforces it too, by its limit of the run time, and deletes the disk,
# which a power-off does not. So this timer fires two minutes later. It counts on the monotonic clock from the boot. An
# instance that cannot arm it powers off.
last_s="$((SPOTRUN_TIME_TO_LIVE_S + 120))"
if ! systemd-run --unit=spotrun-time-to-live --on-boot="${last_s}s" --timer-property=AccuracySec=1s \
    systemctl poweroff; then
    echo "spotrun: the time-to-live cannot be armed: power off"
    systemctl poweroff
    exit 1
fi
echo "spotrun: launch ${SPOTRUN_LAUNCH} of run ${SPOTRUN_RUN_UID} powers off ${last_s} s after its boot"

umask 077
mkdir -p "${SPOTRUN_INSTANCE_DIR}/boot"
echo "${boot_id}" >"${SPOTRUN_INSTANCE_DIR}/boot-id"

# Print the metadata server's value of this name.
metadata() {
    curl -fsS --retry 4 --retry-connrefused --max-time 5 -H "Metadata-Flavor: Google" \
        "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/$1"
}

# Print a header. It goes through a pipe, so that no list of processes shows the token.
authorization() {
    metadata instance/service-accounts/default/token |
        sed -n 's/.*"access_token" *: *"\([^"]*\)".*/Authorization: Bearer \1/p'
}

# Print Cloud Storage's answer about a path; the other arguments are options of curl.
storage() {
    curl -fsS --retry 2 --connect-timeout 5 --max-time 120 -H @<(authorization) "${@:2}" \
        "${API_ENDPOINT_OVERRIDE:-https://storage.googleapis.com}/$1"
}

# Download all of the run's folder boot/. Of the characters that a run's address may contain, only the slash is encoded
# in an object's name.
fetch() {
    local place="${SPOTRUN_RUN#gs://}" names name
    local objects="storage/v1/b/${place%%/*}/o" folder="${place#*/}/boot/"
    names="$(storage "${objects}?prefix=${folder}&fields=items/name" | grep -o '/boot/[A-Za-z0-9._+-]*"')" || return
    for name in ${names//[\"]/}; do
        name="${name##*/}"
        [[ "${name}" == failed-* ]] && continue # logs of earlier launches
        storage "${objects}/${folder//\//%2F}${name}?alt=media" -o "${SPOTRUN_INSTANCE_DIR}/boot/${name}" || return
    done
    [[ -e "${SPOTRUN_INSTANCE_DIR}/boot/start.sh" ]]
}

# All of Google recognises a new service account only after some minutes.
for pause in 1 2 4 8 16 32 60 60 0; do
    fetch && fetched=yes && break
    sleep "${pause}"
done
if [[ -z "${fetched:-}" ]]; then
    echo "spotrun: error: the run's folder cannot be read: power off"
    systemctl poweroff
    exit 1
fi
declare -f metadata authorization storage >"${SPOTRUN_INSTANCE_DIR}/google.sh"

# The agent runs as a service. When the service ends for any reason, the instance powers off. If the kernel ends a
# training for lack of memory, the service continues (OOMPolicy), and the agent handles the loss.
#
# At a shutdown the service is stopped first, while there is a network. Only its first process receives the signal
# (KillMode), and waits for the agent: with the usual notice, the agent learns of the preemption only now. After 30 s
# Compute Engine ends the instance in any case.
systemd-run --unit=spotrun --property="ExecStopPost=systemctl poweroff" --property=LimitNOFILE=65536 \
    --property="After=network-online.target google-guest-agent.service" \
    --property=KillMode=mixed --property=TimeoutStopSec=30 --property=OOMPolicy=continue \
    --setenv=SPOTRUN_RUN --setenv=SPOTRUN_RUN_UID --setenv=SPOTRUN_LAUNCH --setenv=SPOTRUN_INSTANCE_DIR \
    --setenv=SPOTRUN_NOTICE_S --setenv=HOME=/root --setenv=PATH \
    /bin/bash "${SPOTRUN_INSTANCE_DIR}/boot/start.sh" || systemctl poweroff
