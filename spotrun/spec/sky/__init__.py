"""A job in the words of SkyPilot (https://docs.skypilot.co/en/latest/reference/yaml-spec.html), put into ours."""
