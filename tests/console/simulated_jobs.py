"""Manifests for tests of `simulate`, and the command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

JOBSET = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
  BATCH: "128"
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: single-host-tpu-v3-jobset2
  namespace: default
  labels:
    managed-mldiagnostics-gke: "true"
spec:
  failurePolicy:
    maxRestarts: 1
  network:
    enableDNSHostnames: true
  replicatedJobs:
    - name: workers
      replicas: 1
      template:
        spec:
          parallelism: 2
          completions: 2
          backoffLimit: 0
          template:
            metadata:
              labels: {app: digits}
            spec:
              restartPolicy: Never
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice
                cloud.google.com/gke-tpu-topology: 2x4
              affinity: {podAffinity: {}}
              tolerations: [{key: google.com/tpu, operator: Exists}]
              initContainers:
                - {name: fetch, image: busybox, command: ["true"]}
              volumes:
                - {name: data, persistentVolumeClaim: {claimName: data}}
              containers:
                - name: jax-tpu
                  image: us-docker.pkg.dev/my-project/repo/train:latest
                  command: [python, train.py]
                  args: [--data, /data/$(POD_INDEX), --not=$$(POD_INDEX), $(UNKNOWN)]
                  env:
                    - {name: STEPS, value: "40"}
                    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
                    - name: POD_INDEX
                      valueFrom:
                        fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-completion-index']"}
                    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
                    - {name: BATCH, valueFrom: {configMapKeyRef: {name: settings, key: BATCH}}}
                    - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}
                    - name: JAX_COORDINATOR_ADDRESS
                      value: single-host-tpu-v3-jobset2-workers-0-0.single-host-tpu-v3-jobset2:1234
                    - {name: XLA_FLAGS, value: --xla_tpu_enable_async_collective_fusion=true}
                  volumeMounts: [{name: data, mountPath: /data}]
                  ports: [{containerPort: 9999}]
                  livenessProbe: {httpGet: {path: /, port: 9999}}
                  resources:
                    limits: {google.com/tpu: 4}
                - {name: logger, image: busybox}
"""
"""The JobSet of the documentation, with what pods of training jobs have besides."""


def job(command: str, *, pods: int = 1, more: str = "", pod: str = "", container: str = "") -> str:
    """Return a Job with a command (a list in YAML), and further lines of its spec, its pods and its container."""
    return f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: digits}}
spec:
  completionMode: Indexed
  completions: {pods}
  parallelism: {pods}
  backoffLimit: 0
{_indented(more, 2)}
  template:
    spec:
      restartPolicy: Never
{_indented(pod, 6)}
      containers:
        - name: train
          command: {command}
{_indented(container, 10)}
"""


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.splitlines())


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell in which `mldiagnostics` and `python` are those of the tests."""
    return {
        **os.environ,
        "HOME": str(folder),
        "ML_DIAGNOSTICS_DIR": str(folder / "diagnostics"),
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
    }


def arguments(*words: str) -> list[str]:
    """Return the command line of `mldiagnostics simulate`."""
    return [sys.executable, "-m", "google_cloud_mldiagnostics", "simulate", *words]


def simulate(folder: Path, *words: str, timeout_seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
    """Run `mldiagnostics simulate` in a folder."""
    return subprocess.run(
        arguments(*words), cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=timeout_seconds
    )
