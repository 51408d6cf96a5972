variable "project" {
  type        = string
  description = "Id of the project, to which infra/gcp has been applied."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "A project's id has 6 to 30 lower-case letters, digits and hyphens; its number or name will not do."
  }
}

variable "installers" {
  type        = set(string)
  description = "The runners who may install nights, as IAM names them: user:ADA@EXAMPLE.COM, group:…, serviceAccount:…"

  validation {
    condition     = alltrue([for each in var.installers : can(regex("^(user|group|serviceAccount|principal|principalSet):.+", each))])
    error_message = "Write user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS, principal:… or principalSet:…; nobody else can install nights."
  }
}

variable "bucket" {
  type        = string
  default     = null
  description = "Name of the runs' bucket; by default spotrun-PROJECT."
}
