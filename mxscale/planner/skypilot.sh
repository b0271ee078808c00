#!/bin/bash
# What each machine of a task runs, in a container of the image, as root; the command of the training follows.
set -euo pipefail
mkdir -p "$MXSCALE_RUNS/data"
where=("launch.ranks=$((DEVICES * SKYPILOT_NUM_NODES))")
if [[ $SKYPILOT_NUM_NODES != 1 ]]; then
  # Horovod starts the ranks of other machines by ssh: they run the sshd of the image, with keys on the share
  keys=$MXSCALE_FOLDER/keys
  trained=$keys/$SKYPILOT_TASK_ID.trained
  mkdir -p "$keys"
  [[ -L /keys ]] || { rmdir /keys && ln -s "$keys" /keys; }
  if [[ $SKYPILOT_NODE_RANK != 0 ]]; then
    /mxscale/docker/entrypoint /mxscale/docker/worker &
    until [[ -e $trained ]]; do
      kill -0 $! || exit 1 # SkyPilot ends the others, when one fails
      sleep 5
    done
    exit
  fi
  mapfile -t addresses <<<"$SKYPILOT_NODE_IPS"
  for address in "${addresses[@]:1}"; do
    for ((tries = 1; ; tries++)); do
      if /mxscale/docker/entrypoint ssh -o BatchMode=yes -o ConnectTimeout=5 "$address" true; then break; fi
      if ((tries == 60)); then exit 1; fi
      sleep 5
    done
  done
  printf -v hosts ",%s:$DEVICES" "${addresses[@]}"
  where+=("launch.hosts=[${hosts:1}]" "data.cache=$MXSCALE_RUNS/data")
  trap 'if [[ $? == 0 ]]; then touch "$trained"; fi' EXIT
fi
