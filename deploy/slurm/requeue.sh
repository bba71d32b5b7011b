# What a batch job does with its node. The job goes back to the queue while work is left:
#
#   source requeue.sh
#   run_node p2pswarm node --config stage.toml
#
# Slurm requeues by itself what is preempted, and no job for its exit code. Before the time limit it
# signals the batch shell alone (--signal=B:TERM@60), so the shell passes SIGTERM on.

run_node() {
    local code tries=3
    if [ -z "$P2PSWARM_BOOTSTRAP" ]; then  # each node would begin a swarm of its own
        echo "error: P2PSWARM_BOOTSTRAP is not set: export HOST:PORT of a node, then sbatch again" >&2
        exit 2
    fi
    asked= again= node=
    trap 'asked=yes again=yes; [ -z "$node" ] || kill -TERM "$node" 2> /dev/null' TERM
    while :; do
        "$@" &
        node=$!
        [ -z "$asked" ] || kill -TERM "$node" 2> /dev/null  # it came before the node did
        while :; do  # a signal ends `wait` before the node ends
            again=
            wait "$node"
            code=$?
            [ -n "$again" ] || break
        done
        case $code in
            0 | 2 | 129 | 130) exit "$code" ;;  # nothing is left to do, or only a person can do it
            143) break ;;  # the work goes on elsewhere, and here when the queue gives a machine again
        esac
        [ -z "$asked" ] || break  # it was asked to leave, and failed at that
        tries=$((tries - 1))      # it failed: a bad card fails again, so not for ever
        [ "$tries" -gt 0 ] || exit "$code"
        sleep 10                  # what it needs may begin after it
    done
    trap '' TERM  # nobody is left to hear it
    # RUNNING: the time limit is near. Of a job that scancel ends, or that Slurm preempts, it says otherwise.
    if [ "$(squeue --noheader --job "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit 143
}
