"""A program for gcloud's own modules: reads filters and VMs, writes which VMs pass which filter."""

import json
import sys

sdk = sys.argv[1]
sys.path[:0] = [f"{sdk}/lib", f"{sdk}/lib/third_party"]

from googlecloudsdk.core.resource import resource_filter  # noqa: E402

given = json.load(sys.stdin)
passes = []
for text in given["filters"]:
    compiled = resource_filter.Compile(text)
    passes.append([bool(compiled.Evaluate(vm)) for vm in given["vms"]])
print(json.dumps(passes))
