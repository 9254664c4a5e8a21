# What your cluster needs before warprun can start, such as `module load`, goes here. Activate the virtual environment of warprun before
# you submit, or set WARPRUN_VENV=/path/to/venv.
if [[ -n "${WARPRUN_VENV:-}" ]]; then source "$WARPRUN_VENV/bin/activate"; fi
set -uo pipefail # not before: `module load` and activation scripts may read variables that are not set

# A run is told to save a checkpoint and to end two minutes before the time limit above; WARPRUN_STOP_S=SECONDS for another limit.
stop_s="${WARPRUN_STOP_S:-14280}"
read -ra settings <<< "${WARPRUN_SETTINGS:-}"
settings+=("$@")
given=" ${settings[*]-} "

if [[ -r "${hosts:-}" ]]; then # a line for each rank
    nodes=$(sort -u "$hosts" | wc -l) first=$(head -n 1 "$hosts") ranks=$(wc -l < "$hosts")
fi
[[ -v nodes ]] || nodes=1 first=localhost
[[ -v on_each_node ]] || on_each_node=(mpiexec -n "$nodes")
[[ -v all_ranks ]] || all_ranks=(mpiexec -n "${RANKS:-${ranks:-4}}")

own=() stop=() launch=()
[[ "$given" == *" resume="* || -z "$job" ]] || own+=("resume=auto")
[[ "$given" == *" resume="* || "$given" == *" run_dir="* || -z "$job" ]] || own+=("run_dir=outputs/$job")
case "$given" in
    *" concurrency=ddp "*) # a process for each GPU, or WARPRUN_PROCESSES on each node
        [[ -z "$job" ]] || stop=(timeout --preserve-status "$stop_s")
        ((nodes == 1)) || launch=("${on_each_node[@]}")
        launch+=(torchrun "--nnodes=$nodes" "--nproc-per-node=${WARPRUN_PROCESSES:-auto}" --rdzv-backend=c10d)
        launch+=("--rdzv-endpoint=$first:${MASTER_PORT:-29500}" --no-python)
        ;;
    *" concurrency="[!s]* | *" concurrency="s[!i]*) # learners and actors: the ranks of MPI
        [[ -z "$job" ]] || own+=("max_minutes=$((stop_s / 60 - 1))") # it evaluates and saves
        launch=("${all_ranks[@]}")
        ;;
    *)
        [[ -z "$job" ]] || stop=(timeout --preserve-status "$stop_s")
        [[ -z "$threads" ]] || own+=("concurrency.threads=$threads")
        launch=(${one[@]+"${one[@]}"})
        ;;
esac

# Settings of the user come last and win.
exec ${stop[@]+"${stop[@]}"} ${launch[@]+"${launch[@]}"} warprun train ${own[@]+"${own[@]}"} ${settings[@]+"${settings[@]}"}
