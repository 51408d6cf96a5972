#!/bin/bash
# The second part of an instance's start: installs a Python with exactly this spotrun, then runs the agent to its end.
# The caller powers the machine off when this script ends, whatever the reason.
set -euo pipefail

boot="${SPOTRUN_INSTANCE_DIR}/boot"
log="${SPOTRUN_INSTANCE_DIR}/boot.log"
exec 3>&1 > >(tee -a "${log}") 2>&1
tee=$!
. "${SPOTRUN_INSTANCE_DIR}/google.sh"

# At a shutdown only this script receives the signal. The agent reads its notice itself, and uses the time left.
shutting_down=""
trap 'shutting_down=yes' TERM

# When Compute Engine takes an instance, it deletes the disk too. An instance that powers itself off before that stays,
# and its disk is billed until a user deletes it. The wait is limited, because a notice may be withdrawn: the notice that
# the launch requested, the usual 30 s, and a minute.
await_the_cloud() {
    if [[ -z "${shutting_down}" && "$(metadata instance/preempted)" == TRUE ]]; then
        echo "spotrun: the instance waits for Compute Engine to take it, and its disk"
        sleep "$((SPOTRUN_NOTICE_S + 90))" &
        wait "$!" || true
    fi
}
trap await_the_cloud EXIT

place="${SPOTRUN_RUN#gs://}"
name="${place#*/}/boot/failed-${SPOTRUN_LAUNCH}.log"
upload_log() { # once: an instance may replace nothing in boot/
    storage "upload/storage/v1/b/${place%%/*}/o?uploadType=media&name=${name}" \
        -H "Content-Type: text/plain" --data-binary "@${log}" -o /dev/null
}

# No agent can report a failure here, so the log goes to the run's folder, where users look.
failed() {
    trap - ERR
    echo "spotrun: launch ${SPOTRUN_LAUNCH} failed before its agent ran"
    exec >&3 2>&1
    wait "${tee}" || true # it has written the last line
    end_telling
    upload_log
    exit 1
}
trap failed ERR

locks=(lock.txt gcp.txt) another="gcp.image"
. "${boot}/install.sh"
# The image may lack PyTorch. The agent does not need it, and installs it in the run's own setup, once for each run.
if ! has_all gcp,lightning 2>/dev/null; then
    has_all gcp
    echo "spotrun: this image has no PyTorch that spotrun takes: it is installed with the set-up"
    export SPOTRUN_INSTALLS_TORCH=1
fi

SPOTRUN_INSTANCE_ID="$(metadata instance/name)"
export SPOTRUN_INSTANCE_ID
cd "${SPOTRUN_INSTANCE_DIR}"
"${own}" -P -m spotrun.agent.bootstrap
