#!/bin/bash
# Host XProf on 127.0.0.1:6006 of this VM, for ssh tunnels and for the agent of the proxy. The parameters of the VM are
# read from the metadata server. The current step and the result are written to startup_output.json in the log
# directory.
set -euo pipefail
umask 022

readonly metadata=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance
readonly storage=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
readonly home=${XPROFILER_HOME:-/opt/xprofiler} port=${XPROFILER_PORT:-6006}
started=$(date +%s) launched=0 attempts=0 backend='' step='' object='' note=''

get() { curl -sSf --retry 3 --max-time 60 "$@"; }
# The token is not an argument, which other users of the VM could read.
authorized() { get -H @<(echo "Authorization: Bearer $(token)") "$@"; }
about() { get -H 'Metadata-Flavor: Google' "$metadata/$1"; }
token() { about service-accounts/default/token | field access_token; }
field() { python3 -c 'import functools as f, json, sys
print(f.reduce(lambda found, key: found[int(key) if key == "0" else key], sys.argv[1:], json.load(sys.stdin)))' "$@"; }

report() { # state, error
  [[ $object ]] || return 0
  python3 -c 'import json, sys
pairs = zip(sys.argv[1::2], sys.argv[2::2])
print(json.dumps({key: int(value) if value.isdigit() else value for key, value in pairs}))' \
    state "$1" error "${2:-}" step "$step" startup_script_begin_ts "$started" tb_launched_ts "$launched" \
    tb_attempts_count "$attempts" tb_backend_id "$backend" |
    authorized -o /dev/null --data-binary @- "$object" ||
    echo "cannot write to $logs: this VM's service account needs roles/storage.objectUser" >&3
}
at() { step=$1 && echo "xprofiler: $step" >&3 && report starting; }
finish() {
  local code=$?
  trap - EXIT
  cat startup.log >&3 || true
  if ((code)); then
    report failed "exit code $code: $(tail -n 5 startup.log | cut -c -300)"
  else
    report ready "$note"
  fi
  exit "$code"
}
proxy_of() { # region
  get "$storage/storage/v1/b/dl-platform-public-configs/o/proxy-agent-config.json?alt=media" |
    field agent-docker-containers latest proxy-urls "$1" 0
}
register() { # proxy. Print the id of this VM in the proxy.
  local identity
  identity=$(about "service-accounts/default/identity?format=full&audience=$1/request-endpoint") || return
  authorized -d '' -H @<(echo "X-Inverting-Proxy-VM-ID: $identity") "$1/request-endpoint" | field backendID
}
add() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -yq install --no-install-recommends "$@"; }
# Start the agent, which forwards the proxy's requests to XProf; succeed once it has run for a second. The image has the
# tag that Google's configuration uses: no digest is published, and an old agent may not work with the proxy.
forward() { # proxy, id
  add docker.io && { docker rm -f xprofiler-agent || true; } && docker run -d --name xprofiler-agent --restart=always \
    --net=host -e "PROXY=$1/" -e "BACKEND=$2" -e HOSTNAME=127.0.0.1 -e "PORT=$port" \
    gcr.io/inverting-proxy/agent:latest &&
    sleep 1 && [[ $(docker inspect -f '{{.State.Running}} {{.RestartCount}}' xprofiler-agent) == 'true 0' ]]
}

mkdir -p "$home" && cd "$home"
exec 3>&1 >startup.log 2>&1
trap finish EXIT
trap 'exit 143' TERM
logs=$(about attributes/xprofiler_log_directory) path=${logs#gs://}
zone=$(about zone) key=$(about name)/startup_output.json
[[ $path == */* ]] && key=${path#*/}/$key
key=$(python3 -c 'import sys, urllib.parse as u; print(u.quote(sys.argv[1], safe=""))' "$key")
object="$storage/upload/storage/v1/b/${path%%/*}/o?uploadType=media&name=$key"

at 'registering with the proxy' # If this fails, ssh still works.
region=${zone##*/} region=${region%-*}
if proxy=$(proxy_of "$region") && id=$(register "$proxy"); then backend=$id; else note='no proxy'; fi
at 'installing Python'
apt-get -q update
add python3-venv
if [[ $backend ]]; then forward "$proxy" "$backend" & fi
at 'installing XProf'
python3 -m venv venv
venv/bin/pip install -q "xprof==$(about attributes/tensorboard-plugin-profile)"
at 'starting XProf' # XProf's own command listens on every interface. systemd would expand a $ in arguments.
systemd-run --unit=xprofiler --property=DynamicUser=yes --property=Restart=always \
  --setenv="LOGS=$logs" --setenv="PORT=$port" -- "$home/venv/bin/python" -c 'import os
from xprof import server
logs = os.environ["LOGS"]
context = server.TBContext(logs, server.DataProvider(logs), server.TBContext.Flags(False))
context.hide_capture_profile_button = True
server.run_server(server.ProfilePluginLoader().load(context), "127.0.0.1", int(os.environ["PORT"]))'
until curl -sf -o /dev/null --max-time 5 "http://127.0.0.1:$port/"; do
  if ((++attempts == 240)); then
    journalctl -u xprofiler -n 5 || true
    exit 1
  fi
  sleep 0.5
done
launched=$(date +%s) step=serving
# Publish the link once it works, but report ready after 30 s at the latest, since an ssh tunnel needs no link.
if [[ $backend ]]; then
  agent=$! id=$backend backend=''
  for ((polls = 0; polls < 60; polls++)); do
    kill -0 "$agent" 2>/dev/null || break
    sleep 0.5
  done
  if ((polls == 60)); then report ready 'the agent of the proxy is still being installed'; fi
  if wait "$agent"; then backend=$id; else note='the agent of the proxy did not start'; fi
fi
