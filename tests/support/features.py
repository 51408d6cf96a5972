"""The feature packages."""

FEATURES = {
    "bench": {"bench"},
    "bill": {"bill"},
    "estimate": {"estimate"},
    "forecast": {"plan", "simulate"},
    "metrics": {"metrics", "spans"},
    "night": {"night"},
    "sweep": {"sweep", "report"},
    "verify": {"verify_resume"},
    "view": {"view"},
}
"""Each feature package, and the verbs in cli/ that import it. `report` shows a sweep by its name."""
