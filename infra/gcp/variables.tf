variable "project" {
  type        = string
  description = "Id of the project. Only spotrun should use it, because a runner may use every service account in the project."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "A project's id has 6 to 30 lower-case letters, digits and hyphens; its number or name will not do."
  }
}

variable "runners" {
  type        = set(string)
  description = "Who runs spotrun, as IAM names them: user:ADA@EXAMPLE.COM, group:…, serviceAccount:…"

  validation {
    condition     = alltrue([for each in var.runners : can(regex("^(user|group|serviceAccount|principal|principalSet):.+", each))])
    error_message = "Write user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS, principal:… or principalSet:…; nobody else can run spotrun."
  }
}

variable "bucket" {
  type        = string
  default     = null
  description = "Name of the bucket; by default spotrun-PROJECT."

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", coalesce(var.bucket, "spotrun")))
    error_message = "A bucket's name has 3 to 63 lower-case letters, digits, dots, hyphens and underscores, between letters or digits."
  }

  validation {
    condition     = !contains(["ledger", "keys", "runs"], coalesce(var.bucket, "spotrun"))
    error_message = "In a bucket of this name, the conditions that protect ledgers and keys would protect every object or none."
  }
}

variable "location" {
  type        = string
  default     = "us-central1"
  description = "Region of the bucket. Choose a region in which you rent instances, because traffic between regions is billed."
}

variable "subnets" {
  type        = map(string)
  default     = { us-central1 = "10.10.0.0/20" }
  description = "Regions in which you rent instances, each with the address range of its subnet, as { us-central1 = \"10.10.0.0/20\" }."

  validation {
    condition     = alltrue([for range in values(var.subnets) : can(cidrhost(range, 0))])
    error_message = "Each range is one of IPv4, as 10.10.0.0/20."
  }
}

variable "ssh_members" {
  type        = set(string)
  default     = []
  description = "Who may open a shell on instances through Identity-Aware Proxy, named in the same way as runners. If the list is empty, no port is open."

  validation {
    condition     = alltrue([for each in var.ssh_members : can(regex("^(user|group|serviceAccount|principal|principalSet):.+", each))])
    error_message = "Write user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS, principal:… or principalSet:…; nobody else may open a shell."
  }
}

variable "readers" {
  type        = set(string)
  default     = []
  description = "Who may read all runs, but not their keys, named in the same way as runners."

  validation {
    condition     = alltrue([for each in var.readers : can(regex("^(user|group|serviceAccount|principal|principalSet):.+", each))])
    error_message = "Write user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS, principal:… or principalSet:…; nobody else can be named."
  }
}
