# What spotrun needs in a project of Google Cloud. README.md says what each part is for, and who may do what with it.

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
    for name in fileset("${path.module}/conditions", "*.yaml") :
    trimsuffix(name, ".yaml") => yamldecode(file("${path.module}/conditions/${name}"))
  }
}

resource "google_project_service" "used" {
  for_each = toset([
    "cloudbilling.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "iam.googleapis.com",
    "iap.googleapis.com",
    "secretmanager.googleapis.com",
    "storage.googleapis.com",
  ])

  project            = var.project
  service            = each.value
  disable_on_destroy = false
}

# A runner may give an instance any service account of the project, because IAM has no condition for an account's name.
# The account that Compute Engine creates is an editor of the project, unless the organization forbids that.
resource "google_project_default_service_accounts" "powerless" {
  project        = var.project
  action         = "DEPRIVILEGE"
  restore_policy = "REVERT"

  depends_on = [google_project_service.used]
}

# -- network ----------------------------------------------------------------------------------------------------------

# By default, incoming connections are denied and outgoing ones allowed; so without a rule nothing comes in.
resource "google_compute_network" "nodes" {
  project                 = var.project
  name                    = "spotrun"
  description             = "Instances of spotrun. No rule lets anything in, except for ssh through IAP where it is asked for."
  auto_create_subnetworks = false

  depends_on = [google_project_service.used]
}

resource "google_compute_subnetwork" "nodes" {
  for_each = var.subnets

  project                  = var.project
  name                     = "spotrun"
  region                   = each.key
  network                  = google_compute_network.nodes.id
  ip_cidr_range            = each.value
  private_ip_google_access = true
}

# -- bucket -----------------------------------------------------------------------------------------------------------

resource "google_storage_bucket" "runs" {
  project                     = var.project
  name                        = local.bucket
  location                    = var.location
  uniform_bucket_level_access = true # otherwise folders cannot have separate policies
  public_access_prevention    = "enforced"

  # By default, each checkpoint that a run deletes would be kept and billed for another week.
  soft_delete_policy {
    retention_duration_seconds = 0
  }

  # lifecycle.json has the same rules for gcloud. None deletes live objects: a run that loses ledger entries is lost.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 1
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.used]
}

# -- who may do what --------------------------------------------------------------------------------------------------

resource "google_project_iam_custom_role" "spotrun" {
  for_each = local.roles

  project     = var.project
  role_id     = each.key
  title       = each.value.title
  description = each.value.description
  stage       = each.value.stage
  permissions = each.value.includedPermissions

  depends_on = [google_project_service.used]
}

resource "google_project_iam_member" "runner" {
  for_each = var.runners

  project = var.project
  role    = google_project_iam_custom_role.spotrun["spotrunRunner"].name
  member  = each.value
}

resource "google_project_iam_member" "ends_instances" {
  for_each = var.runners

  project = var.project
  role    = google_project_iam_custom_role.spotrun["spotrunEnd"].name
  member  = each.value

  condition {
    title       = local.conditions["spotrunEnd"].title
    description = local.conditions["spotrunEnd"].description
    expression  = local.conditions["spotrunEnd"].expression
  }
}

resource "google_storage_bucket_iam_member" "keeps_runs" {
  for_each = var.runners

  bucket = google_storage_bucket.runs.name
  role   = google_project_iam_custom_role.spotrun["spotrunBucket"].name
  member = each.value
}

resource "google_storage_bucket_iam_member" "changes_runs" {
  for_each = var.runners

  bucket = google_storage_bucket.runs.name
  role   = google_project_iam_custom_role.spotrun["spotrunChange"].name
  member = each.value

  condition {
    title       = local.conditions["spotrunChange"].title
    description = local.conditions["spotrunChange"].description
    expression  = local.conditions["spotrunChange"].expression
  }
}

resource "google_storage_bucket_iam_member" "shares_folders" {
  for_each = var.runners

  bucket = google_storage_bucket.runs.name
  role   = google_project_iam_custom_role.spotrun["spotrunFolder"].name
  member = each.value

  condition {
    title       = local.conditions["spotrunFolder"].title
    description = local.conditions["spotrunFolder"].description
    expression  = local.conditions["spotrunFolder"].expression
  }
}

# With the key of a run, one can sign as the run's owner. A new bucket grants this role to all Viewers of the project,
# who could read the keys. This resource decides alone who has the role.
resource "google_storage_bucket_iam_binding" "viewers_read_nothing" {
  bucket  = google_storage_bucket.runs.name
  role    = "roles/storage.legacyObjectReader"
  members = var.runners
}

resource "google_storage_bucket_iam_member" "reads_runs" {
  for_each = var.readers

  bucket = google_storage_bucket.runs.name
  role   = "roles/storage.objectViewer"
  member = each.value

  condition {
    title       = local.conditions["spotrunRead"].title
    description = local.conditions["spotrunRead"].description
    expression  = local.conditions["spotrunRead"].expression
  }
}

# IAM conditions cannot depend on the caller, so each run may read the secrets of every job in the project. Only the
# service accounts of instances may read values: no runner gets this right.
resource "google_project_iam_member" "reads_secrets" {
  project = var.project
  role    = google_project_iam_custom_role.spotrun["spotrunSecret"].name
  member  = "principalSet://cloudresourcemanager.googleapis.com/projects/${google_storage_bucket.runs.project_number}/type/ServiceAccount"

  condition {
    title       = local.conditions["spotrunSecret"].title
    description = local.conditions["spotrunSecret"].description
    expression  = local.conditions["spotrunSecret"].expression
  }
}

# -- ssh, if it is requested ------------------------------------------------------------------------------------------

# https://cloud.google.com/iap/docs/using-tcp-forwarding: all connections come from this range, after IAP has checked who asks.
resource "google_compute_firewall" "ssh" {
  count = length(var.ssh_members) == 0 ? 0 : 1

  project       = var.project
  name          = "spotrun-ssh"
  description   = "ssh through Identity-Aware Proxy"
  network       = google_compute_network.nodes.id
  direction     = "INGRESS"
  source_ranges = ["35.235.240.0/20"]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_project_iam_member" "ssh" {
  for_each = var.ssh_members

  project = var.project
  role    = google_project_iam_custom_role.spotrun["spotrunSsh"].name
  member  = each.value
}
