#!/bin/bash
# What each machine of a task runs, in a container of the image, as root; the command of the training follows.
set -euo pipefail
mkdir -p "$MXSCALE_RUNS/data"
hosts=()
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
  for address in $(tail -n +2 <<<"$SKYPILOT_NODE_IPS"); do
    until /mxscale/docker/entrypoint ssh -o BatchMode=yes "$address" true; do sleep 5; done
  done
  # shellcheck disable=SC2034 # used by the command
  hosts=("launch.hosts=[$(sed "s/$/:$SLOTS/" <<<"$SKYPILOT_NODE_IPS" | paste -sd,)]" "data.cache=$MXSCALE_RUNS/data")
  trap 'if [[ $? == 0 ]]; then touch "$trained"; fi' EXIT
fi
