"""
SKUs of Compute Engine in the form of the Cloud Billing Catalog.

The words, groups and units are Google's (https://cloud.google.com/skus); the prices are those of us-central1 in 2026.
"""

from __future__ import annotations

from typing import Any

from tests.support.google_answers import money

IOWA = "us-central1"
CORE_AND_RAM = {
    "A2": ("0.031611", "0.004237"),
    "E2": ("0.02181159", "0.00292353"),
    "N2": ("0.031611", "0.004237"),
}
GPUS = {
    "Nvidia Tesla A100 GPU": "2.933908",
    "Nvidia Tesla A100 80GB GPU": "3.92808",
    "Nvidia L4 GPU": "0.560040239",
}
_UNITS = {"CPU": "h", "RAM": "GiBy.h", "GPU": "h", "LocalSSD": "GiBy.mo"}


def sku(
    description: str, group: str, usd: str, *, usage: str = "OnDemand", region: str = IOWA, unit: str = ""
) -> dict[str, Any]:
    return {
        "name": "services/6F81-5844-456A/skus/0000-0000-0000",
        "skuId": "0000-0000-0000",
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Storage" if group == "LocalSSD" else "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit or _UNITS.get(group, "h"),
                    "displayQuantity": 1,
                    "tieredRates": [{"startUsageAmount": 0, "unitPrice": money(usd)}],
                },
                "currencyConversionRate": 1,
                "effectiveTime": "2026-11-24T23:12:01.412Z",
            }
        ],
        "serviceProviderName": "Google",
    }


def on_demand_skus() -> list[dict[str, Any]]:
    """Of the parts above, and a local SSD that has no place in its words, as in Google's oldest regions."""
    found = [sku("SSD backed Local Storage", "LocalSSD", "0.08")]
    for family, (core, ram) in CORE_AND_RAM.items():
        found.append(sku(f"{family} Instance Core running in Americas", "CPU", core))
        found.append(sku(f"{family} Instance Ram running in Americas", "RAM", ram))
    return found + [sku(f"{name} running in Americas", "GPU", usd) for name, usd in GPUS.items()]


def decoys() -> list[dict[str, Any]]:
    """What looks like the same, and is another product, another market, another place or another unit."""
    return [
        sku("N2 Custom Instance Core running in Americas", "CPU", "9"),
        sku("Reserved A2 Instance Core running in Americas", "CPU", "9"),
        sku("N2 Sole Tenancy Instance Core running in Americas", "CPU", "9"),
        sku("Nvidia L4 Virtual Workstation GPU running in Americas", "GPU", "9"),
        sku("Nvidia L4 GPU attached to Sole Tenancy VMs running in Americas", "GPU", "9"),
        sku("Commitment v1: N2 Cpu in Americas for 1 Year", "CPU", "9", usage="Commit1Yr"),
        sku("N2 Instance Core running in Americas", "CPU", "9", region="us-east1"),
        sku("N2 Instance Core running in Americas", "CPU", "9", usage="Preemptible"),
        sku("Spot Preemptible N2 Instance Core running in Americas", "CPU", "9"),
        sku("N2 Instance Ram running in Americas", "RAM", "9", unit="GBy.h"),
        sku("N2 Instance Ram running in Americas", "Licenses", "9"),
        sku("N2 Instance Ram running in Americas", "RAM", "0"),
    ]
