rule tokenize:
    output:
        "results/data/{data}/manifest.json",
    log:
        "logs/tokenize/{data}.log",
    benchmark:
        "logs/tokenize/{data}.tsv"
    threads: 1
    params:
        spec=data_spec,
    message:
        "Tokenising {wildcards.data}"
    shell:
        "tlm-repro tokenize --spec {params.spec:q} --workers {threads} --out {output:q} > {log:q} 2>&1"


rule data:
    input:
        DATA_MANIFEST,
    log:
        "logs/data.log",
    message:
        "The data set is in {input}"
