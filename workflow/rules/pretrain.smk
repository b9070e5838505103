rule pretrain:
    input:
        data=ancient(DATA_MANIFEST),
    output:
        "results/models/{run}/manifest.json",
    log:
        "logs/pretrain/{run}.log",
    benchmark:
        "logs/pretrain/{run}.tsv"
    threads: 1
    resources:
        # How a run is executed can't change its weights, so it isn't among the params, which would trigger a rerun.
        processes=processes,
        micro_batch_sequences=micro_batch_sequences,
        checkpoint_seconds=GRID.config.trainer.checkpoint_seconds,
        validations=GRID.config.trainer.validations,
        validation_tokens=GRID.config.trainer.validation_tokens,
    params:
        spec=run_spec,
        # Not an output: Snakemake deletes outputs before it starts a job again, and training resumes from here.
        checkpoints="results/checkpoints/{run}",
    message:
        "Pretraining {wildcards.run}"
    shell:
        "tlm-repro pretrain --spec {params.spec:q} --data {input.data:q} --checkpoints {params.checkpoints:q}"
        " --processes {resources.processes} --micro-batch-sequences {resources.micro_batch_sequences}"
        " --checkpoint-seconds {resources.checkpoint_seconds} --validations {resources.validations}"
        " --validation-tokens {resources.validation_tokens}"
        " --out {output:q} > {log:q} 2>&1"


rule models:
    input:
        expand("results/models/{run}/manifest.json", run=GRID.runs),
    log:
        "logs/models.log",
    message:
        "Every run is trained"
