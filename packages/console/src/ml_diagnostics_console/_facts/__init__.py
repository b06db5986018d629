"""What is known of a job, from all sources: `facts` is the form, one module for each source reads it."""
