#!/bin/bash
# The second part of an instance's start: a Python with this very spotrun in it, then its agent until that says power off.
# What starts this script powers the machine off when it ends, whatever the reason.
set -euo pipefail

boot="${SPOTRUN_INSTANCE_DIR}/boot"
log="${SPOTRUN_INSTANCE_DIR}/boot.log"
exec > >(tee -a "${log}") 2>&1

# What fails here has no agent to tell of it: the run's folder is where people will look.
failed() {
    trap - ERR
    echo "spotrun: launch ${SPOTRUN_LAUNCH} failed before its agent ran"
    sleep 1 # for tee to write the last line
    aws s3 cp --only-show-errors "${log}" "${SPOTRUN_RUN}/boot/failed-${SPOTRUN_LAUNCH}.log"
    exit 1
}
trap failed ERR

# The image's own Python where it has PyTorch, which is large and fits its driver; else any that is new enough.
new_enough='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
has_torch='import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'
python=""
for candidate in /opt/pytorch/bin/python python3 python3.13 python3.12 python3.11; do
    path="$(command -v "${candidate}")" && "${path}" -c "${new_enough}" || continue
    if "${path}" -c "${has_torch}"; then
        python="${path}"
        break
    fi
    python="${python:-${path}}"
done
if [[ -z "${python}" ]]; then
    echo "spotrun: this image has no Python 3.11 to 3.13: name another one by aws.image_id or aws.image_parameter"
    failed
fi

# An environment of its own that sees all that the image has, and adds what is missing.
if [[ ! -e "${SPOTRUN_INSTANCE_DIR}/ready" ]]; then
    "${python}" -m venv --without-pip "${SPOTRUN_INSTANCE_DIR}/venv"
    own="${SPOTRUN_INSTANCE_DIR}/venv/bin/python"
    site="$("${own}" -c 'import site; print(site.getsitepackages()[0])')"
    "${python}" -c 'import site; print(*site.getsitepackages(), sep="\n")' > "${site}/image.pth"
    pip=("${python}" -m pip --python "${own}" --disable-pip-version-check --no-input install --quiet --retries 10)
    "${pip[@]}" --no-deps --force-reinstall "${boot}"/spotrun-*.whl
    locked=("${pip[@]}" --require-hashes --no-deps --only-binary :all:)
    "${locked[@]}" --requirement "${site}/spotrun/boot/lock.txt"
    # From nowhere: pip looks whether all is there now. What an image may lack is PyTorch.
    complete=("${pip[@]}" --no-index 'spotrun[aws,lightning]')
    if ! "${complete[@]}"; then
        "${locked[@]}" --requirement "${site}/spotrun/boot/torch.txt" --requirement "${site}/spotrun/boot/cuda.txt"
        "${complete[@]}"
    fi
    touch "${SPOTRUN_INSTANCE_DIR}/ready"
fi

metadata="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest"
ask=(curl -fsS --retry 10 --retry-connrefused --max-time 5)
token="$("${ask[@]}" -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 300" "${metadata}/api/token")"
SPOTRUN_INSTANCE_ID="$("${ask[@]}" -H "X-aws-ec2-metadata-token: ${token}" "${metadata}/meta-data/instance-id")"
region="$("${ask[@]}" -H "X-aws-ec2-metadata-token: ${token}" "${metadata}/meta-data/placement/region")"
export SPOTRUN_INSTANCE_ID AWS_DEFAULT_REGION="${AWS_DEFAULT_REGION:-${region}}"

cd "${SPOTRUN_INSTANCE_DIR}"
"${SPOTRUN_INSTANCE_DIR}/venv/bin/python" -P -m spotrun.agent.bootstrap
