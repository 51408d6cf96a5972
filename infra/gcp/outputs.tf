output "store" {
  value       = "gs://${google_storage_bucket.runs.name}/runs"
  description = "The value for checkpoint.uri or --store."
}

output "subnets" {
  value       = { for region in keys(var.subnets) : region => google_compute_subnetwork.nodes[region].id }
  description = "The subnet for instances in each region."
}

output "roles" {
  value       = { for name in keys(local.roles) : name => google_project_iam_custom_role.spotrun[name].name }
  description = "The custom roles. A runner grants spotrunCreate and spotrunChange to each run's service account, in the run's folder."
}
