# Sourced by the start.sh of each cloud, which has set `log`, the file of what it prints, `locks`, the files of
# spotrun/boot that its instances need, and `another`, the settings that name another image. It has functions too:
# `failed`, which is called where nothing can go on, `upload_log`, and `delete_log` where an instance may replace objects.
# What is there afterwards is `own`, a Python with this very spotrun in it that sees all that the image has, and what to
# do with it: `locked` installs a lock, and `has_all` says whether nothing is missing of what spotrun needs with some
# extras.

# The log is in the run's folder while it grows, where an instance may replace it: what ends the instance from outside
# leaves no time for that.
exec {ends}<> <(:)
tell() {
    local told="" now
    until read -rt 10 -u "${ends}"; do # a start that is soon over uploads nothing
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

# Before the last upload, and before the agent begins: an older log must not be written over a newer one.
end_telling() {
    [[ -n "${teller}" ]] || return 0
    echo >&"${ends}"
    wait "${teller}" || true
}

echo "spotrun: launch ${SPOTRUN_LAUNCH} installs what its agent needs"

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
    echo "spotrun: this image has no Python 3.11 to 3.13: name another one by ${another}"
    failed
fi

"${python}" -m venv --without-pip "${SPOTRUN_INSTANCE_DIR}/venv"
own="${SPOTRUN_INSTANCE_DIR}/venv/bin/python"
site="$("${own}" -c 'import site; print(site.getsitepackages()[0])')"
"${python}" -c 'import site; print(*site.getsitepackages(), sep="\n")' > "${site}/image.pth"

# Where packets go nowhere pip would try for a quarter of an hour, each of its connections by itself.
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

# From nowhere: pip looks whether all is there.
has_all() {
    pip --no-index "spotrun[$1]"
}

pip --no-deps --force-reinstall "${boot}"/spotrun-*.whl
"${locked[@]}" "${locks[@]/#/--requirement=${site}/spotrun/boot/}"
