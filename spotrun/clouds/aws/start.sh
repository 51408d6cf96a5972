#!/bin/bash
# The second part of an instance's start: installs a Python with exactly this spotrun, then runs the agent to its end.
# The caller powers the machine off when this script ends, whatever the reason.
set -euo pipefail

boot="${SPOTRUN_INSTANCE_DIR}/boot"
log="${SPOTRUN_INSTANCE_DIR}/boot.log"
exec 3>&1 > >(tee -a "${log}") 2>&1
tee=$!

place="${SPOTRUN_RUN}/boot/failed-${SPOTRUN_LAUNCH}.log"
upload_log() {
    timeout 60 aws s3 cp --only-show-errors "${log}" "${place}"
}
delete_log() {
    timeout 60 aws s3 rm --only-show-errors "${place}"
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

locks=(lock.txt) another="aws.image_id or aws.image_parameter"
. "${boot}/install.sh"
# Install PyTorch if the image lacks it.
if ! has_all aws,lightning; then
    "${locked[@]}" --requirement "${site}/spotrun/boot/torch.txt" --requirement "${site}/spotrun/boot/cuda.txt"
    has_all aws,lightning
fi

metadata="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest"
ask=(curl -fsS --retry 10 --retry-connrefused --max-time 5)
token="$("${ask[@]}" -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 300" "${metadata}/api/token")"
SPOTRUN_INSTANCE_ID="$("${ask[@]}" -H "X-aws-ec2-metadata-token: ${token}" "${metadata}/meta-data/instance-id")"
region="$("${ask[@]}" -H "X-aws-ec2-metadata-token: ${token}" "${metadata}/meta-data/placement/region")"
export SPOTRUN_INSTANCE_ID AWS_DEFAULT_REGION="${AWS_DEFAULT_REGION:-${region}}"

end_telling
if [[ -e "${log}.told" ]]; then
    delete_log >&3 2>&1 & # nothing has failed so far, and the agent need not wait for it
fi
cd "${SPOTRUN_INSTANCE_DIR}"
"${own}" -P -m spotrun.agent.bootstrap
