# What `spotrun night install … --cloud gcp` needs in a project, besides infra/gcp. The section Nights of ../README.md says who may do what.

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.50, < 8.0"
    }
  }
}

provider "google" {
  project = var.project
}

locals {
  bucket = coalesce(var.bucket, "spotrun-${var.project}")
  roles = {
    for name in fileset("${path.module}/roles", "*.yaml") :
    trimsuffix(name, ".yaml") => yamldecode(file("${path.module}/roles/${name}"))
  }
  conditions = {
    for name in fileset("${path.module}/../conditions", "*.yaml") :
    trimsuffix(name, ".yaml") => yamldecode(file("${path.module}/../conditions/${name}"))
  }
  runner = "serviceAccount:${google_service_account.night.email}"
  clock  = "serviceAccount:${google_service_account.clock.email}"
}

resource "google_project_service" "used" {
  for_each = toset([
    "cloudscheduler.googleapis.com",
    "iamcredentials.googleapis.com",
    "run.googleapis.com",
  ])

  project            = var.project
  service            = each.value
  disable_on_destroy = false
}

resource "google_project_iam_custom_role" "nights" {
  for_each = local.roles

  project     = var.project
  role_id     = each.key
  title       = each.value.title
  description = each.value.description
  stage       = each.value.stage
  permissions = each.value.includedPermissions

  depends_on = [google_project_service.used]
}

# -- who attends to the runs: a runner like any other ------------------------------------------------------------------

resource "google_service_account" "night" {
  project      = var.project
  account_id   = "spotrun-night"
  display_name = "spotrun, attends to the runs of nights"
}

resource "google_project_iam_member" "runner" {
  project = var.project
  role    = "projects/${var.project}/roles/spotrunRunner"
  member  = local.runner
}

resource "google_project_iam_member" "ends_instances" {
  project = var.project
  role    = "projects/${var.project}/roles/spotrunEnd"
  member  = local.runner

  condition {
    title       = local.conditions["spotrunEnd"].title
    description = local.conditions["spotrunEnd"].description
    expression  = local.conditions["spotrunEnd"].expression
  }
}

resource "google_storage_bucket_iam_member" "keeps_runs" {
  bucket = local.bucket
  role   = "projects/${var.project}/roles/spotrunBucket"
  member = local.runner
}

resource "google_storage_bucket_iam_member" "changes_runs" {
  bucket = local.bucket
  role   = "projects/${var.project}/roles/spotrunChange"
  member = local.runner

  condition {
    title       = local.conditions["spotrunChange"].title
    description = local.conditions["spotrunChange"].description
    expression  = local.conditions["spotrunChange"].expression
  }
}

resource "google_storage_bucket_iam_member" "shares_folders" {
  bucket = local.bucket
  role   = "projects/${var.project}/roles/spotrunFolder"
  member = local.runner

  condition {
    title       = local.conditions["spotrunFolder"].title
    description = local.conditions["spotrunFolder"].description
    expression  = local.conditions["spotrunFolder"].expression
  }
}

# Webhook addresses are secrets whose names begin with spotrun-. infra/gcp lets all accounts of the project read these.

# This covers all jobs of the project, because IAM has no condition for the name of a Cloud Scheduler job.
resource "google_project_iam_member" "switches_its_call" {
  project = var.project
  role    = google_project_iam_custom_role.nights["spotrunNight"].name
  member  = local.runner
}

# -- who calls the service -------------------------------------------------------------------------------------------------------

resource "google_service_account" "clock" {
  project      = var.project
  account_id   = "spotrun-clock"
  display_name = "spotrun, calls who attends to the runs of nights"
}

resource "google_project_iam_member" "calls" {
  project = var.project
  role    = "roles/run.invoker"
  member  = local.clock
}

# -- who installs nights -----------------------------------------------------------------------------------------------

resource "google_project_iam_member" "installs" {
  for_each = var.installers

  project = var.project
  role    = google_project_iam_custom_role.nights["spotrunNightInstall"].name
  member  = each.value
}

resource "google_service_account_iam_member" "hands_out_the_runner" {
  for_each = var.installers

  service_account_id = google_service_account.night.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}

resource "google_service_account_iam_member" "hands_out_the_clock" {
  for_each = var.installers

  service_account_id = google_service_account.clock.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}

# `night run` calls the service with the same account as the schedule.
resource "google_service_account_iam_member" "calls_as_the_clock" {
  for_each = var.installers

  service_account_id = google_service_account.clock.name
  role               = "roles/iam.serviceAccountOpenIdTokenCreator"
  member             = each.value
}
