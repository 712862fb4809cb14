"""A fleet as one Slurm job: the scheduler and the learner on its first node, one actor per task."""

from .service_configs import RUN_ID
from .settings import DeploySettings

JOB = """\
#!/bin/bash
# Written by `parlmesh deploy render`; change its settings rather than this file.
# sbatch fleet.sbatch        the run's files end up in parlmesh-<job id>/ below the folder it was submitted from
#SBATCH --job-name={name}
#SBATCH --ntasks={actors}
#SBATCH --cpus-per-task={slots}
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@60
set -euo pipefail

# Where the binaries are: a venv on a file system that every node can read.
export PATH="${{PARLMESH_BIN:-$HOME/parlmesh/bin}}:$PATH"
export OMP_NUM_THREADS=1
job="$PWD/parlmesh-$SLURM_JOB_ID"
mkdir -p "$job"
chmod 700 "$job"
host="${{PARLMESH_HOST:-$(hostname -f)}}"

# Free ports, so that several jobs fit on one node.
read -r {names} < <(python3 -c '
import socket
held = [socket.create_server(("", 0)) for _ in range({ports})]
print(*(each.getsockname()[1] for each in held))')

# An authority for this job only: other users of the machines cannot join the fleet.
certs() {{ parlmesh certs "$@" --folder "$job/certs" > "$job/certs.log"; }}
certs ca
for server in scheduler learner; do
    role=()
    [ "$server" = scheduler ] || role=(--role operator)
    certs server "$server" --dns "$host" --dns localhost "${{role[@]}}"
done
certs token operator --role operator
for task in $(seq 0 $((SLURM_NTASKS - 1))); do certs node "task-$task"; done

secure() {{
    printf 'security: {{ca: %s/certs/ca.crt, certificate: %s/certs/%s.crt, key: %s/certs/%s.key%s}}\\n' \\
        "$job" "$job" "$1" "$job" "$1" "$2"
}}
{{
    printf 'listen: {{host: 0.0.0.0, port: %s}}\\nmetrics: {{port: 0}}\\n' "$scheduler"
    printf 'store: {{path: /tmp/parlmesh-%s.sqlite}}\\n' "$SLURM_JOB_ID"
    secure scheduler ", tokens: $job/certs/tokens.yaml"
}} > "$job/scheduler.yaml"
{{
    printf 'listen: {{host: 0.0.0.0, port: %s}}\\nmetrics: {{port: 0}}\\n' "$learner"
    printf 'scheduler: %s:%s\\nrun_dir: %s/{run}\\nrun_id: {run}\\n' "$host" "$scheduler" "$job"
    printf 'training: {{environment: {{id: {environment}}}, step_budget: {step_budget}, goal_return: {goal_return}}}\\n'
    secure learner ", tokens: $job/certs/tokens.yaml"
}} > "$job/learner.yaml"
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
    {{
        printf 'scheduler: %s:%s\\nlearner: %s:%s\\n' "$host" "$scheduler" "$host" "$learner"
        printf 'slots: {slots}\\nmetrics: {{port: 0}}\\n'
        secure "task-$task" ""
    }} > "$job/task-$task.yaml"
done

parlmesh-scheduler --config "$job/scheduler.yaml" 2> "$job/scheduler.log" &
{start_learner}
servers=($(jobs -p))
# A separate step: Slurm ends the actors with the job, whatever happens to this script.
srun --ntasks="$SLURM_NTASKS" --overlap bash -c \\
    'exec parlmesh-actor --config "$0/task-$SLURM_PROCID.yaml" 2> "$0/task-$SLURM_PROCID.log"' "$job" &
actors=$!
finish() {{ kill -TERM "$actors" "${{servers[@]}}" 2> /dev/null || true; wait || true; }}
trap finish EXIT
trap 'exit 143' TERM

export PARLMESH_CA="$job/certs/ca.crt" PARLMESH_TOKEN_FILE="$job/certs/operator.token"
# In the background, because bash handles no signal while it waits for a foreground program.
parlmesh train wait --run {run} --learner "$host:$learner" &
wait $!
"""


_ALONE = 'parlmesh-learner --config "$job/learner.yaml" 2> "$job/learner.log" &'
_TOGETHER = """\
# Ranks share the learner's gradient steps; if one is lost, all restart from the run's newest checkpoint.
export MASTER_ADDR="$host" MASTER_PORT="$ranks" WORLD_SIZE={processes}
(
    trap 'kill -TERM "$step" 2> /dev/null; wait "$step"; exit 0' TERM
    while true; do
        srun --ntasks={processes} --overlap --kill-on-bad-exit=1 bash -c \\
            'export RANK=$SLURM_PROCID; exec parlmesh-learner --config "$0/learner.yaml" 2>> "$0/learner-$RANK.log"' \\
            "$job" &
        step=$!
        wait "$step" && exit 0
        sleep 1
    done
) &"""


def files(settings: DeploySettings) -> dict[str, str]:
    """The batch script."""
    several = settings.learner_processes > 1
    return {
        "fleet.sbatch": JOB.format(
            name=settings.name,
            actors=settings.actors,
            slots=settings.slots,
            environment=settings.environment,
            step_budget=settings.step_budget,
            goal_return=settings.goal_return,
            run=RUN_ID,
            ports=3 if several else 2,
            names="scheduler learner ranks" if several else "scheduler learner",
            start_learner=_TOGETHER.format(processes=settings.learner_processes) if several else _ALONE,
        )
    }
