"""Facts of a job, from all sources: `facts` has their form, and each source has a module that reads it."""
