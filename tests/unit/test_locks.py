"""The lock names all that pyproject.toml does, in versions that it takes, and the digest of each wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.locks import (
    BOOT,
    CPU_BUILD,
    CUDA,
    EXAMPLES,
    EXTRAS,
    GCP,
    HEADS,
    LAYERS,
    PEERS,
    TESTS,
    TORCH,
    WANTED_PEERS,
    Pin,
    asked_for,
    pins,
    unmet,
)
from tests.support.repository import ROOT

BEFORE = {
    BOOT: (TORCH, CUDA),
    GCP: (BOOT, TORCH, CUDA),
    EXAMPLES: (BOOT, TORCH, CUDA),
    TESTS: (BOOT, GCP, TORCH, CUDA, EXAMPLES),
}
DIGEST = f"    --hash=sha256:{'ab' * 32}"


def locked(*names: str) -> list[Pin]:
    return [pin for name in names for pin in pins((ROOT / name).read_text())]


@pytest.mark.parametrize("name", HEADS)
def test_each_line_of_the_lock_is_a_version_with_digests(name: str) -> None:
    assert len({pin.name for pin in locked(name)}) > 5


def test_the_lock_has_the_peers_of_the_benchmark() -> None:
    lines = (ROOT / WANTED_PEERS).read_text().splitlines()
    wanted = [Requirement(line) for line in lines if not line.startswith("#")]
    assert len(wanted) > 5
    assert unmet(wanted, locked(PEERS)) == []


def test_a_guide_installs_the_locked_torch() -> None:
    guides = (page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    installed = {version for text in guides for version in re.findall(r"pip install [^`\n]*torch==([\w.]+)", text)}
    assert installed == {pin.version.partition("+")[0] for pin in locked(TORCH) if pin.name == "torch"}


@pytest.mark.parametrize("name", EXTRAS)
def test_the_lock_has_all_that_pyproject_names(name: str) -> None:
    needs = asked_for([extra for each in EXTRAS for extra in EXTRAS[each] if each in (name, *BEFORE[name])])
    assert len(needs) > 10
    assert unmet(needs, locked(name, *BEFORE[name])) == []


def test_the_lock_has_nothing_for_what_pyproject_names_no_longer() -> None:
    ours = {pin.name for pin in locked(*LAYERS) if pin.is_ours}
    assert ours == {canonicalize_name(each.name) for each in asked_for(EXTRAS[TESTS])}


def test_lock_contains_the_requirements_of_its_packages() -> None:
    """pip is not asked to look for more (`--no-deps`), so nothing must be missing."""
    whole = locked(*LAYERS)
    asked = [need for pin in whole for need in asked_here(pin)]
    assert len(asked) > 100
    assert unmet(asked, whole) == []


def asked_here(pin: Pin) -> Iterator[Requirement]:
    """By the package as it is installed here; nothing of one that is not, as on another system."""
    try:
        texts = distribution(pin.name).requires or []
    except PackageNotFoundError:
        return
    for need in map(Requirement, texts):
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield need


def test_no_package_is_in_two_files() -> None:
    names = [pin.name for name in LAYERS for pin in {each.name: each for each in locked(name)}.values()]
    assert len(names) == len(set(names))


def test_a_build_without_cuda_is_of_the_same_version() -> None:
    """So pip leaves it there: a local version meets `==` without one."""
    (torch,) = (pin for pin in locked(TORCH) if pin.name == "torch")
    for pin in locked(CPU_BUILD):
        assert (pin.name, Version(pin.version).public) == ("torch", torch.version)
        assert Version(pin.version).local == "cpu"


@pytest.mark.parametrize("text", ["://", "@ ", "--index", "--find-links", "\n-"])
@pytest.mark.parametrize("name", [*HEADS, CPU_BUILD])
def test_the_lock_names_no_places(name: str, text: str) -> None:
    assert text not in (ROOT / name).read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("one==1.0\n", "no digest of one"),
        (f"one==1.0 \\\n{DIGEST}\ntwo==2.0\n    # via one\n", "no digest of two"),
        (f"one>=1.0 \\\n{DIGEST}\n", "'one>=1.0"),
        ("one==1.0 \\\n    --hash=md5:0123\n", "--hash=md5"),
        (f"one==1.0 \\\n{DIGEST[:-1]}\n", "--hash=sha256"),
        (f"{DIGEST}\n", "--hash=sha256"),
        (f"--index-url file:///wheels\none==1.0 \\\n{DIGEST}\n", "--index-url"),
    ],
)
def test_a_line_that_pip_would_take_without_a_digest_is_an_error(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        pins(text)


def test_a_pin_has_its_marker_its_digests_and_who_asks_for_it() -> None:
    text = (
        f"# head\none==1.0 ; sys_platform == 'linux' \\\n{DIGEST} \\\n{DIGEST}\n    # via\n    #   two\n    #   three\n"
    )
    assert pins(text) == [Pin("one", "1.0", "sys_platform == 'linux'", ("ab" * 32,) * 2, ("two", "three"))]
    assert pins(f"one==1.0 \\\n{DIGEST}\n    # via two\n")[0].reasons == ("two",)


def test_refused_version_and_missing_package_are_reported() -> None:
    pin = Pin("a-b", "1.0", "", ("ab" * 32,), ())
    needs = [Requirement(each) for each in ("A_b>=1", "a-b>=1,!=1.0", "c")]
    assert unmet(needs, [pin]) == ["a-b!=1.0,>=1", "c"]


def test_the_example_for_github_names_actions_by_their_commits_and_stores_no_key() -> None:
    text = (ROOT / "examples/nightly/github-actions.yml").read_text()
    flow = yaml.safe_load(text)
    (job,) = flow["jobs"].values()
    actions = [step["uses"] for step in job["steps"] if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in actions)
    assert flow["permissions"]["id-token"] == "write"
    assert "role-to-assume" in text
    assert not re.search("access-key|ACCESS_KEY", text)
