rule measure_novelty:
    input:
        ancient(novelty_inputs),
    output:
        "results/novelty/{measurement}.json",
    log:
        "logs/novelty/{measurement}.log",
    benchmark:
        "logs/novelty/{measurement}.tsv"
    priority: 10
    threads: 1
    resources:
        gpu_slots=1,
    params:
        spec=novelty_spec,
        model=novelty_model_option,
        data=novelty_data_option,
    message:
        "Measuring the layer novelty of {wildcards.measurement}"
    shell:
        "tlm-repro novelty --spec {params.spec:q} {params.model} {params.data} --out {output:q} > {log:q} 2>&1"


rule novelty:
    input:
        NOVELTY_FILES,
        [path for path in TABLES + FIGURES if "novelty" in path],
    log:
        "logs/novelty.log",
    message:
        "Layer novelty is measured, tabulated and drawn"
