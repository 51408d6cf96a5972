# The start.sh of each cloud sources this file. Before that, start.sh sets three variables: `log` (the file with its
# output), `locks` (the lock files in spotrun/boot that its instances need) and `another` (the settings by which a user
# names another image). It also defines these functions: `failed`, which is called if the start cannot continue;
# `upload_log`; and `delete_log`, if an instance may replace objects in the store.
# This file defines `own`, a Python interpreter that can import spotrun and all packages of the image. It also defines
# `locked`, which installs a lock file, and `has_all`, which checks that all packages for some extras are installed.

# If an instance may replace objects, the log is uploaded to the run's folder while it grows. If the instance is ended
# from outside, there is no time to upload it.
exec {ends}<> <(:)
tell() {
    local told="" now
    until read -rt 10 -u "${ends}"; do # a short start uploads nothing
        now="$(cksum <"${log}")"
        if [[ "${now}" != "${told}" ]] && upload_log; then
            told="${now}"
            touch "${log}.told"
        fi
    done
}
teller=""
if declare -F delete_log >/dev/null; then
    touch "${log}"
    tell >&3 2>&1 &
    teller=$!
fi

# Called before the last upload, and before the agent begins, so that no older log overwrites a newer one.
end_telling() {
    [[ -n "${teller}" ]] || return 0
    echo >&"${ends}"
    wait "${teller}" || true
}

echo "spotrun: launch ${SPOTRUN_LAUNCH} installs what its agent needs"

# Use a Python of the image that has PyTorch, because PyTorch is large and the image's fits the driver. If no Python has
# it, use any Python that is new enough.
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
    echo "spotrun: this image has no Python 3.11 to 3.13: name another one by ${another}"
    failed
fi

"${python}" -m venv --without-pip "${SPOTRUN_INSTANCE_DIR}/venv"
own="${SPOTRUN_INSTANCE_DIR}/venv/bin/python"
site="$("${own}" -c 'import site; print(site.getsitepackages()[0])')"
"${python}" -c 'import site; print(*site.getsitepackages(), sep="\n")' > "${site}/image.pth"

# If the network drops packets, pip would try each of its connections, which takes a quarter of an hour.
pip_s=300
pip() {
    local code=0
    timeout --kill-after=10 "${pip_s}" "${python}" -m pip --python "${own}" --disable-pip-version-check --no-input \
        install --quiet "$@" || code=$?
    if [[ "${code}" == 124 || "${code}" == 137 ]]; then
        echo "spotrun: error: pip has installed nothing within ${pip_s} s: no package index can be reached from here"
    fi
    return "${code}"
}
locked=(pip --require-hashes --no-deps --only-binary :all:)

# With --no-index, pip downloads nothing, and fails if a package is missing.
has_all() {
    pip --no-index "spotrun[$1]"
}

pip --no-deps --force-reinstall "${boot}"/spotrun-*.whl
"${locked[@]}" "${locks[@]/#/--requirement=${site}/spotrun/boot/}"
