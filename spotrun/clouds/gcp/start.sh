#!/bin/bash
# The second part of an instance's start: a Python with this very spotrun in it, then its agent until that says power off.
# What starts this script powers the machine off when it ends, whatever the reason.
set -euo pipefail

boot="${SPOTRUN_INSTANCE_DIR}/boot"
log="${SPOTRUN_INSTANCE_DIR}/boot.log"
exec 3>&1 > >(tee -a "${log}") 2>&1
tee=$!
. "${SPOTRUN_INSTANCE_DIR}/google.sh"

# At a shutdown this script alone is told. The agent hears of it by itself, and has what time there is.
shutting_down=""
trap 'shutting_down=yes' TERM

# Compute Engine deletes what it takes, and its disk. What powers itself off before that stays there, and its disk is
# billed until somebody deletes it. The wait has an end, as a notice may be taken back: the usual 30 s, and a minute.
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

# What fails here has no agent to tell of it: the run's folder is where people will look.
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
# What an image may lack is PyTorch. The agent does not need it, and installs it with the run's own set-up, once a run.
if ! has_all gcp,lightning 2>/dev/null; then
    has_all gcp
    echo "spotrun: this image has no PyTorch that spotrun takes: it is installed with the set-up"
    export SPOTRUN_INSTALLS_TORCH=1
fi

SPOTRUN_INSTANCE_ID="$(metadata instance/name)"
export SPOTRUN_INSTANCE_ID
cd "${SPOTRUN_INSTANCE_DIR}"
"${own}" -P -m spotrun.agent.bootstrap
