# Each command takes a view: the cells to show and the files to read. A command line has no room for those of many seeds.
# One job writes all views. They aren't ancient() to the rules below: where that job has to run, Snakemake would plan
# nothing downstream of it.
# The view is a param of each rule too: a table that another configuration made under the same name is made again.
rule views:
    output:
        list(VIEW_FILES.values()),
    log:
        "logs/views.log",
    params:
        config=whole_config,
        left_out=left_out_options,
    message:
        "Writing down what each table and figure shows"
    shell:
        "tlm-repro views --config {params.config:q} {params.left_out} > {log:q} 2>&1"


rule table:
    input:
        view=table_view,
        files=exhibit_files,
    output:
        csv=report(
            "results/tables/{exhibit}.csv",
            caption="../report/exhibit.rst",
            category="Tables",
            labels=exhibit_labels,
        ),
        markdown="results/tables/{exhibit}.md",
        latex="results/tables/{exhibit}.tex",
    log:
        "logs/tables/{exhibit}.log",
    params:
        caption=exhibit_caption,
        view=table_view,
    message:
        "Tabulating {wildcards.exhibit}"
    shell:
        "tlm-repro table --view {input.view:q} --out {output.csv:q} > {log:q} 2>&1"


rule figure:
    input:
        view=figure_view,
        files=exhibit_files,
    output:
        svg=report(
            "results/figures/{exhibit}.svg",
            caption="../report/exhibit.rst",
            category="Figures",
            labels=exhibit_labels,
        ),
        pdf="results/figures/{exhibit}.pdf",
        png="results/figures/{exhibit}.png",
    log:
        "logs/figures/{exhibit}.log",
    params:
        caption=exhibit_caption,
        view=figure_view,
    message:
        "Drawing {wildcards.exhibit}"
    shell:
        "tlm-repro figure --view {input.view:q} --out {output.svg:q} > {log:q} 2>&1"


rule claims:
    input:
        view=VIEW_FILES["claims"],
        files=VIEWS["claims"].files,
    output:
        json="results/claims.json",
        markdown=report("results/claims.md", caption="../report/claims.rst", category="Claims"),
    log:
        "logs/claims.log",
    params:
        view=claims_view,
    message:
        "Judging the claims"
    shell:
        "tlm-repro claims --view {input.view:q} --out {output.json:q} > {log:q} 2>&1"


rule html_report:
    input:
        view=VIEW_FILES["report"],
        files=VIEWS["report"].files,
        tables=TABLES,
        figures=FIGURES,
        claims="results/claims.json",
    output:
        "results/report.html",
    log:
        "logs/report.log",
    params:
        figures=figure_options,
        view=report_view,
    message:
        "Writing {output}"
    shell:
        "tlm-repro report --view {input.view:q} {params.figures} --out {output:q} > {log:q} 2>&1"


rule tables:
    input:
        TABLES,
    log:
        "logs/tables.log",
    message:
        "The tables are in results/tables"


rule figures:
    input:
        FIGURES,
    log:
        "logs/figures.log",
    message:
        "The figures are in results/figures"
