"""The files of the fake of Google Cloud, for the tests that have it alone as their subject."""

from tests.support.repository import ROOT

FAKE = sorted(
    str(path.relative_to(ROOT))
    for kind in ("gce", "gcloud", "google")
    for path in (ROOT / "tests" / "support").glob(f"{kind}_*.py")
)
