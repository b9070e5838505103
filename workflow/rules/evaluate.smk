rule needle_samples:
    input:
        ancient(samples_inputs),
    output:
        "results/needles/{samples}/manifest.json",
    log:
        "logs/needles/{samples}.log",
    benchmark:
        "logs/needles/{samples}.tsv"
    threads: 1
    params:
        spec=samples_spec,
    message:
        "Hiding needles: {wildcards.samples}"
    shell:
        "tlm-repro needle-samples --spec {params.spec:q}" f" --data {DATA_MANIFEST}" " --out {output:q} > {log:q} 2>&1"


rule evaluate:
    input:
        ancient(evaluation_inputs),
    output:
        "results/evaluations/{run}/{evaluation}.json",
    log:
        "logs/evaluate/{run}/{evaluation}.log",
    benchmark:
        "logs/evaluate/{run}/{evaluation}.tsv"
    threads: 1
    resources:
        gpu_slots=1,
        batch_size=GRID.config.evaluation.batch_size,
        benchmarks=benchmarks_option,  # the spec names the items: a folder that moves changes nothing
    params:
        spec=suite_spec,
        samples=samples_option,
    message:
        "Evaluating {wildcards.run}: {wildcards.evaluation}"
    shell:
        "tlm-repro evaluate --spec {params.spec:q} --model results/models/{wildcards.run}/manifest.json"
        f" --data {DATA_MANIFEST}"
        " {params.samples} {resources.benchmarks} --batch-size {resources.batch_size} --out {output:q} > {log:q} 2>&1"


rule needles:
    input:
        SAMPLES_MANIFESTS,
    log:
        "logs/needles.log",
    message:
        "The needle samples are in results/needles"


rule evaluations:
    input:
        ALL_EVALUATIONS,
    log:
        "logs/evaluations.log",
    message:
        "Every run is evaluated"
