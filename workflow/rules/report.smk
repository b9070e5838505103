# Each command is given a view: which cells to show and which files to read, however many there are.
# They are one job, and not ancient to those that show them: where it must run, Snakemake would plan nothing behind it.
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
        view=experiment_view,
        files=experiment_files,
    output:
        csv=report(
            "results/tables/{experiment}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{experiment}"},
        ),
        markdown="results/tables/{experiment}.md",
        latex="results/tables/{experiment}.tex",
    log:
        "logs/tables/{experiment}.log",
    wildcard_constraints:
        experiment="motivation|sweep|main|allocations",
    message:
        "Tabulating {wildcards.experiment}"
    shell:
        "tlm-repro table --view {input.view:q} --out {output.csv:q} > {log:q} 2>&1"


rule trend_table:
    input:
        view=trend_view,
        files=trend_files,
    output:
        csv=report(
            "results/tables/{trend}.csv",
            caption="../report/trend.rst",
            category="Tables",
            labels={"table": "{trend}"},
        ),
        markdown="results/tables/{trend}.md",
        latex="results/tables/{trend}.tex",
    log:
        "logs/tables/{trend}.log",
    wildcard_constraints:
        trend="scaling|curves",
    message:
        "Tabulating {wildcards.trend}"
    shell:
        "tlm-repro trend-table --view {input.view:q} --out {output.csv:q} > {log:q} 2>&1"


rule novelty_table:
    input:
        view=novelty_view,
        files=novelty_files,
    output:
        csv=report(
            "results/tables/{novelty}.csv",
            caption="../report/novelty.rst",
            category="Tables",
            labels={"table": "{novelty}"},
        ),
        markdown="results/tables/{novelty}.md",
        latex="results/tables/{novelty}.tex",
    log:
        "logs/tables/{novelty}.log",
    wildcard_constraints:
        novelty="novelty|novelty-pairs",
    message:
        "Tabulating layer novelty: {wildcards.novelty}"
    shell:
        "tlm-repro novelty-table --view {input.view:q} --out {output.csv:q} > {log:q} 2>&1"


rule niah_table:
    input:
        view=needle_view,
        files=needle_files,
    output:
        csv=report(
            "results/tables/niah.csv",
            caption="../report/niah.rst",
            category="Tables",
            labels={"table": "needle-in-a-haystack"},
        ),
        markdown="results/tables/niah.md",
        latex="results/tables/niah.tex",
    log:
        "logs/tables/niah.log",
    message:
        "Tabulating needle-in-a-haystack"
    shell:
        "tlm-repro niah-table --view {input.view:q} --out {output.csv:q} > {log:q} 2>&1"


rule figure:
    input:
        view=experiment_view,
        files=experiment_files,
    output:
        svg=report(
            "results/figures/{experiment}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{experiment}"},
        ),
        pdf="results/figures/{experiment}.pdf",
        png="results/figures/{experiment}.png",
    log:
        "logs/figures/{experiment}.log",
    wildcard_constraints:
        experiment="motivation|sweep|allocations",
    message:
        "Drawing {wildcards.experiment}"
    shell:
        "tlm-repro figure --view {input.view:q} --out {output.svg:q} > {log:q} 2>&1"


rule trend_figure:
    input:
        view=trend_view,
        files=trend_files,
    output:
        svg=report(
            "results/figures/{trend}.svg",
            caption="../report/trend.rst",
            category="Figures",
            labels={"figure": "{trend}"},
        ),
        pdf="results/figures/{trend}.pdf",
        png="results/figures/{trend}.png",
    log:
        "logs/figures/{trend}.log",
    wildcard_constraints:
        trend="scaling|curves",
    message:
        "Drawing {wildcards.trend}"
    shell:
        "tlm-repro trend-figure --view {input.view:q} --out {output.svg:q} > {log:q} 2>&1"


rule niah_figure:
    input:
        view=heat_map_view,
        files=heat_map_files,
    output:
        svg=report(
            "results/figures/niah-{model}.svg",
            caption="../report/niah.rst",
            category="Figures",
            labels={"figure": "needle-in-a-haystack, {model}"},
        ),
        pdf="results/figures/niah-{model}.pdf",
        png="results/figures/niah-{model}.png",
    log:
        "logs/figures/niah-{model}.log",
    wildcard_constraints:
        model=r"[a-z0-9_]+-[a-z0-9._-]+",
    message:
        "Drawing the heat maps of {wildcards.model}"
    shell:
        "tlm-repro niah-figure --view {input.view:q} --out {output.svg:q} > {log:q} 2>&1"


rule allocation_figure:
    input:
        view=allocation_view,
    output:
        svg=report(
            "results/figures/allocation.svg",
            caption="../report/allocation.rst",
            category="Figures",
            labels={"figure": "allocation"},
        ),
        pdf="results/figures/allocation.pdf",
        png="results/figures/allocation.png",
    log:
        "logs/figures/allocation.log",
    message:
        "Drawing the widths of the allocations"
    shell:
        "tlm-repro allocation-figure --view {input.view:q} --out {output.svg:q} > {log:q} 2>&1"


rule novelty_figure:
    input:
        view=novelty_view,
        files=novelty_files,
    output:
        svg=report(
            "results/figures/{novelty}.svg",
            caption="../report/novelty.rst",
            category="Figures",
            labels={"figure": "{novelty}"},
        ),
        pdf="results/figures/{novelty}.pdf",
        png="results/figures/{novelty}.png",
    log:
        "logs/figures/{novelty}.log",
    wildcard_constraints:
        novelty="novelty|novelty-pairs",
    message:
        "Drawing layer novelty: {wildcards.novelty}"
    shell:
        "tlm-repro novelty-figure --view {input.view:q} --out {output.svg:q} > {log:q} 2>&1"


rule claims:
    input:
        view=VIEW_FILES["claims"],
        files=VIEWS["claims"]["files"],
    output:
        json="results/claims.json",
        markdown=report("results/claims.md", caption="../report/claims.rst", category="Claims"),
    log:
        "logs/claims.log",
    message:
        "Judging the claims"
    shell:
        "tlm-repro claims --view {input.view:q} --out {output.json:q} > {log:q} 2>&1"


rule html_report:
    input:
        view=VIEW_FILES["report"],
        files=VIEWS["report"]["files"],
        tables=TABLES,
        figures=FIGURES,
        claims="results/claims.json",
    output:
        "results/report.html",
    log:
        "logs/report.log",
    params:
        figures=figure_options,
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
