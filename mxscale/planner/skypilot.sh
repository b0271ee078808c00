#!/bin/bash
# What each machine of a task runs, in a container of the image, as root; the command of the training follows.
set -euo pipefail
mkdir -p "$MXSCALE_RUNS/data"
where=("launch.ranks=$RANKS")
if [[ $SKYPILOT_NUM_NODES != 1 ]]; then
  # Horovod starts the ranks of other machines by ssh: they run the sshd of the image, with keys on the share
  keys=$MXSCALE_FOLDER/keys
  trained=$keys/$SKYPILOT_TASK_ID.trained
  mkdir -p "$keys"
  [[ -L /keys ]] || { rmdir /keys && ln -s "$keys" /keys; }
  if [[ $SKYPILOT_NODE_RANK != 0 ]]; then
    /mxscale/docker/entrypoint /mxscale/docker/worker &
    until [[ -e $trained ]]; do sleep 5; done
    exit
  fi
  mapfile -t addresses <<<"$SKYPILOT_NODE_IPS"
  for address in "${addresses[@]:1}"; do
    until /mxscale/docker/entrypoint ssh -o BatchMode=yes "$address" true; do sleep 5; done
  done
  printf -v hosts ",%s:$RANKS" "${addresses[@]}"
  # shellcheck disable=SC2034 # used by the command
  where=("launch.hosts=[${hosts:1}]" "data.cache=$MXSCALE_RUNS/data")
  trap 'if [[ $? == 0 ]]; then touch "$trained"; fi' EXIT
fi
