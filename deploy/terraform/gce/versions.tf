terraform {
  required_version = ">= 1.3" # object attributes that are optional

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0, < 8.0"
    }
  }
}
