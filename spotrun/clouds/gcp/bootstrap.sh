set -u
export SPOTRUN_RUN SPOTRUN_RUN_UID SPOTRUN_LAUNCH SPOTRUN_NOTICE_S
export SPOTRUN_INSTANCE_DIR="${SPOTRUN_INSTANCE_DIR:-/var/lib/spotrun}"
SPOTRUN_RUN="$(base64 --decode <<<"${SPOTRUN_RUN_URI_BASE64}")"

# Compute Engine executes this at each boot, but an instance has one life. What an agent needs of the time before a
# reboot was in its memory, and a runner that has seen an instance switched off has launched another one. Who calls this
# by hand in the same boot finds it done.
boot_id="$(</proc/sys/kernel/random/boot_id)"
if [[ -e "${SPOTRUN_INSTANCE_DIR}/boot-id" ]]; then
    [[ "$(<"${SPOTRUN_INSTANCE_DIR}/boot-id")" == "${boot_id}" ]] && exit 0
    echo "spotrun: launch ${SPOTRUN_LAUNCH} has booted before: power off"
    systemctl poweroff
    exit 1
fi

# The time-to-live comes first. Compute Engine has it as the limit of the run time, and deletes the disk too, which a
# power-off does not. So this one comes two minutes later, and counts on the monotonic clock from the boot on. An
# instance that cannot arm it must not live at all.
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

# What the metadata server has under this name.
metadata() {
    curl -fsS --retry 4 --retry-connrefused --max-time 5 -H "Metadata-Flavor: Google" \
        "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/$1"
}

# A header, so that no list of processes shows the token.
authorization() {
    metadata instance/service-accounts/default/token |
        sed -n 's/.*"access_token" *: *"\([^"]*\)".*/Authorization: Bearer \1/p'
}

# What Cloud Storage answers about a path; the rest are options of curl.
storage() {
    curl -fsS --retry 2 --connect-timeout 5 --max-time 120 -H @<(authorization) "${@:2}" \
        "${API_ENDPOINT_OVERRIDE:-https://storage.googleapis.com}/$1"
}

# The folder boot/ of the run, whole. Of what the address of a run may consist of, only a slash is written otherwise in
# the name of an object.
fetch() {
    local place="${SPOTRUN_RUN#gs://}" names name
    local objects="storage/v1/b/${place%%/*}/o" folder="${place#*/}/boot/"
    names="$(storage "${objects}?prefix=${folder}&fields=items/name" | grep -o '/boot/[A-Za-z0-9._+-]*"')" || return
    for name in ${names//[\"]/}; do
        name="${name##*/}"
        [[ "${name}" == failed-* ]] && continue # of launches before this one
        storage "${objects}/${folder//\//%2F}${name}?alt=media" -o "${SPOTRUN_INSTANCE_DIR}/boot/${name}" || return
    done
    [[ -e "${SPOTRUN_INSTANCE_DIR}/boot/start.sh" ]]
}

# A service account that was made just now takes some minutes to be known everywhere.
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

# A service: its end, whatever it comes from, is the end of the instance. The end of a training for which there was too
# little memory is none: its agent sees to that. At a shutdown it goes first, as long as there is a network, and its
# agent goes on: with the usual notice, that shutdown is when it hears of it. Only the first of its processes is told,
# which waits for the agent. After 30 s Compute Engine waits for nobody.
systemd-run --unit=spotrun --property="ExecStopPost=systemctl poweroff" --property=LimitNOFILE=65536 \
    --property="After=network-online.target google-guest-agent.service" \
    --property=KillMode=mixed --property=TimeoutStopSec=30 --property=OOMPolicy=continue \
    --setenv=SPOTRUN_RUN --setenv=SPOTRUN_RUN_UID --setenv=SPOTRUN_LAUNCH --setenv=SPOTRUN_INSTANCE_DIR \
    --setenv=SPOTRUN_NOTICE_S --setenv=HOME=/root --setenv=PATH \
    /bin/bash "${SPOTRUN_INSTANCE_DIR}/boot/start.sh" || systemctl poweroff
