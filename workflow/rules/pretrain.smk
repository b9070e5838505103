rule pretrain:
    input:
        ancient(training_inputs),
    output:
        "results/models/{run}/manifest.json",
    log:
        "logs/pretrain/{run}.log",
    benchmark:
        "logs/pretrain/{run}.tsv"
    threads: 1
    resources:
        # How a run is executed can't change its weights, so it isn't among the params, which would trigger a rerun.
        nodes=nodes,
        tasks=nodes,
        slurm_extra=gpu_request,
        gpu_slots=processes,  # counts where one machine runs all jobs: profiles/local-gpu
        execution=execution_json,  # the job reads the configuration again: no JSON passes through the executor
    params:
        spec=run_spec,
        # Not an output: Snakemake deletes outputs before it starts a job again, and training resumes from here.
        checkpoints="results/checkpoints/{run}",
    message:
        "Pretraining {wildcards.run}"
    # Without a shell in between, signals from a scheduler reach training and nothing dies before it has saved.
    shell:
        "exec tlm-repro pretrain --spec {params.spec:q} --checkpoints {params.checkpoints:q}"
        f" --data {DATA_MANIFEST}"
        " --execution {resources.execution:q} --out {output:q} > {log:q} 2>&1"


rule models:
    input:
        expand("results/models/{run}/manifest.json", run=GRID.runs),
    log:
        "logs/models.log",
    message:
        "Every run is trained"
