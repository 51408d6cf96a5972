"""Translates a SkyPilot task file (https://docs.skypilot.co/en/latest/reference/yaml-spec.html) into a spotrun job."""
