rule evaluate:
    input:
        model=ancient("results/models/{run}/manifest.json"),
        data=ancient(DATA_MANIFEST),
    output:
        "results/evaluations/{run}/{evaluation}.json",
    log:
        "logs/evaluate/{run}/{evaluation}.log",
    benchmark:
        "logs/evaluate/{run}/{evaluation}.tsv"
    threads: 1
    resources:
        batch_size=GRID.config.evaluation.batch_size,
    params:
        spec=suite_spec,
    message:
        "Evaluating {wildcards.run}: {wildcards.evaluation}"
    shell:
        "tlm-repro evaluate --spec {params.spec:q} --model {input.model:q} --data {input.data:q}"
        " --batch-size {resources.batch_size} --out {output:q} > {log:q} 2>&1"


rule evaluations:
    input:
        ALL_EVALUATIONS,
    log:
        "logs/evaluations.log",
    message:
        "Every run is evaluated"
