"""The program ``horovodrun`` that stands in for Horovod's own: its processes have their ranks already."""

from __future__ import annotations

# Options as horovodrun 0.28.1 has them. Those that mean something to the processes become Horovod's own variables.
PROGRAM = r"""#!/bin/sh
name=${0##*/}
refuse() { echo "$name: $1" >&2; exit 2; }
# A world of one process has no ranks: Horovod's own program, if there is one, starts as many as it is asked for.
if [ -z "$HOROVOD_SIZE" ] && [ "${PET_NNODES:-}" = 1 ]; then
  IFS=:
  for folder in $PATH; do
    [ "$folder" = "${0%/*}" ] || [ ! -x "$folder/$name" ] || exec "$folder/$name" "$@"
  done
  unset IFS
  HOROVOD_SIZE=1
fi
np= min= max=
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    --?*=*) option=${1%%=*}; value=${1#*=}; shift; set -- "$option" "$value" "$@" ;;
  esac
  case $1 in
    -v|--version) echo "$name: the platform's, for command lines of horovodrun 0.28"; exit 0 ;;
    -cb|--check-build) echo "$name: the platform's; ask the program: hvd.gloo_built(), hvd.nccl_built()"; exit 0 ;;
    -np|--num-proc|--min-np|--min-num-proc|--max-np|--max-num-proc|-H|--hosts|-hostfile|--hostfile|-p|--ssh-port|\
    -i|--ssh-identity-file|--start-timeout|--network-interface|--network-interfaces|--output-filename|--config-file|\
    --fusion-threshold-mb|--cycle-time-ms|--cache-capacity|--autotune-log-file|--autotune-warmup-samples|\
    --autotune-steps-per-sample|--autotune-bayes-opt-max-samples|--autotune-gaussian-process-noise|--slots-per-host|\
    --elastic-timeout|--reset-limit|--blacklist-cooldown-range|--timeline-filename|\
    --stall-check-warning-time-seconds|--stall-check-shutdown-time-seconds|--mpi-args|--binding-args|\
    --num-nccl-streams|--thread-affinity|--gloo-timeout-seconds|--log-level|--host-discovery-script|-x)
      [ $# -ge 2 ] || refuse "$1 needs a value." ;;
  esac
  case $1 in
    -np|--num-proc) np=$2; shift 2 ;;
    --min-np|--min-num-proc) min=$2; shift 2 ;;
    --max-np|--max-num-proc) max=$2; shift 2 ;;
    -x) case $2 in *=*) export "$2" ;; esac; shift 2 ;;
    --fusion-threshold-mb) export HOROVOD_FUSION_THRESHOLD=$(($2 * 1048576)); shift 2 ;;
    --cycle-time-ms) export HOROVOD_CYCLE_TIME="$2"; shift 2 ;;
    --cache-capacity) export HOROVOD_CACHE_CAPACITY="$2"; shift 2 ;;
    --timeline-filename) export HOROVOD_TIMELINE="$2"; shift 2 ;;
    --stall-check-warning-time-seconds) export HOROVOD_STALL_CHECK_TIME_SECONDS="$2"; shift 2 ;;
    --stall-check-shutdown-time-seconds) export HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="$2"; shift 2 ;;
    --num-nccl-streams) export HOROVOD_NUM_NCCL_STREAMS="$2"; shift 2 ;;
    --thread-affinity) export HOROVOD_THREAD_AFFINITY="$2"; shift 2 ;;
    --gloo-timeout-seconds) export HOROVOD_GLOO_TIMEOUT_SECONDS="$2"; shift 2 ;;
    --log-level) export HOROVOD_LOG_LEVEL="$2"; shift 2 ;;
    --autotune-log-file) export HOROVOD_AUTOTUNE_LOG="$2"; shift 2 ;;
    --autotune) export HOROVOD_AUTOTUNE=1; shift ;;
    --no-stall-check) export HOROVOD_STALL_CHECK_DISABLE=1; shift ;;
    --timeline-mark-cycles) export HOROVOD_TIMELINE_MARK_CYCLES=1; shift ;;
    --hierarchical-allreduce) export HOROVOD_HIERARCHICAL_ALLREDUCE=1; shift ;;
    --hierarchical-allgather) export HOROVOD_HIERARCHICAL_ALLGATHER=1; shift ;;
    --blacklist-cooldown-range) [ $# -ge 3 ] || refuse "$1 needs two values."; shift 3 ;;
    -H|--hosts|-hostfile|--hostfile|-p|--ssh-port|-i|--ssh-identity-file|--start-timeout|--network-interface|\
    --network-interfaces|--output-filename|--config-file|--autotune-warmup-samples|--autotune-steps-per-sample|\
    --autotune-bayes-opt-max-samples|--autotune-gaussian-process-noise|--slots-per-host|--elastic-timeout|\
    --reset-limit|--mpi-args|--binding-args|--host-discovery-script) shift 2 ;;
    --gloo|--verbose|--disable-cache|--no-autotune|--no-hierarchical-allreduce|--no-hierarchical-allgather|\
    --no-timeline-mark-cycles|--stall-check|--mpi-threads-disable|--no-mpi-threads-disable|--tcp|\
    --log-with-timestamp|--log-without-timestamp|--log-hide-timestamp|--no-log-hide-timestamp|-prefix-timestamp|\
    --prefix-output-with-timestamp) shift ;;
    --mpi|--jsrun) refuse "$1: the platform starts the processes itself, without MPI; leave it out." ;;
    -*) refuse "the option $1 is not known here; put -- before the command if it is not an option." ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || refuse "there is no command behind the options."
[ -n "$HOROVOD_SIZE" ] || refuse "HOROVOD_SIZE is not set: the platform gave this process no rank."
for number in "$np" "$min" "$max"; do
  case $number in *[!0-9]*) refuse "-np, --min-np and --max-np take numbers of processes, not '$number'." ;; esac
done
layout="the job has $HOROVOD_SIZE processes (all replicas with ranks, each with its processes_per_replica)"
if [ -n "$min$max" ]; then
  [ "$HOROVOD_SIZE" -ge "${min:-1}" ] && [ "$HOROVOD_SIZE" -le "${max:-$HOROVOD_SIZE}" ] ||
    refuse "--min-np ${min:-1} and --max-np ${max:-any}, but $layout: change the one or the other."
elif [ -n "$np" ] && [ "$np" -ne "$HOROVOD_SIZE" ]; then
  refuse "-np $np, but $layout: write -np $HOROVOD_SIZE, or change workers and processes_per_replica."
fi
exec "$@"
"""
