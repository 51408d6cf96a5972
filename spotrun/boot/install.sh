# Sourced by the start.sh of each cloud, which has set `locks`, the files of spotrun/boot that its instances need, and
# `another`, the settings that name another image. It calls `failed` where nothing can go on. What is there afterwards is
# `own`, a Python with this very spotrun in it that sees all that the image has, and what to do with it: `locked` installs
# a lock, and `has_all` says whether nothing is missing of what spotrun needs with some extras.

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
pip=("${python}" -m pip --python "${own}" --disable-pip-version-check --no-input install --quiet --retries 10)
locked=("${pip[@]}" --require-hashes --no-deps --only-binary :all:)

# From nowhere: pip looks whether all is there.
has_all() {
    "${pip[@]}" --no-index "spotrun[$1]"
}

"${pip[@]}" --no-deps --force-reinstall "${boot}"/spotrun-*.whl
"${locked[@]}" "${locks[@]/#/--requirement=${site}/spotrun/boot/}"
