rule tokenize_start:
    output:
        "results/data/{data}/parts/plan.json",
    log:
        "logs/tokenize/{data}-start.log",
    benchmark:
        "logs/tokenize/{data}-start.tsv"
    threads: 1
    params:
        spec=data_spec,
        folder=data_folder,
    message:
        "Making the tokenizer and planning the parts of {wildcards.data}"
    shell:
        "tlm-repro tokenize-start --spec {params.spec:q} --folder {params.folder:q} > {log:q} 2>&1"


rule tokenize_part:
    input:
        ancient(token_plan),
    output:
        # The parts themselves aren't declared: Snakemake would delete those that are done when it starts a job again.
        "results/data/{data}/parts/job-{job}-of-{jobs}.json",
    log:
        "logs/tokenize/{data}-{job}-of-{jobs}.log",
    benchmark:
        "logs/tokenize/{data}-{job}-of-{jobs}.tsv"
    threads: 1
    params:
        folder=data_folder,
    message:
        "Tokenising {wildcards.data}, job {wildcards.job} of {wildcards.jobs}"
    shell:
        "tlm-repro tokenize-part --folder {params.folder:q} --job {wildcards.job} --jobs {wildcards.jobs}"
        " --workers {threads} > {log:q} 2>&1"


rule tokenize:
    input:
        ancient(token_parts),
    output:
        "results/data/{data}/manifest.json",
    log:
        "logs/tokenize/{data}.log",
    benchmark:
        "logs/tokenize/{data}.tsv"
    threads: 1
    resources:
        # How many jobs share the work can't change the result, so it isn't among the params, which would trigger a rerun.
        jobs=GRID.config.data.jobs,
    params:
        spec=data_spec,
    message:
        "Tokenising {wildcards.data}"
    shell:
        "tlm-repro tokenize --spec {params.spec:q} --jobs {resources.jobs} --workers {threads} --out {output:q}"
        " > {log:q} 2>&1"


rule data:
    input:
        DATA_MANIFEST,
    log:
        "logs/data.log",
    message:
        "The data set is in {input}"
