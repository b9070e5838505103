rule table:
    input:
        experiment_evaluations,
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
    params:
        view=experiment_view,
    message:
        "Tabulating {wildcards.experiment}"
    shell:
        "tlm-repro table --view {params.view:q} --out {output.csv:q} {input:q} > {log:q} 2>&1"


rule trend_table:
    input:
        trend_evaluations,
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
    params:
        views=trend_views,
    message:
        "Tabulating {wildcards.trend}"
    shell:
        "tlm-repro trend-table --views {params.views:q} --out {output.csv:q} {input:q} > {log:q} 2>&1"


rule novelty_table:
    input:
        NOVELTY_FILES,
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
    params:
        toy=toy_option,
    message:
        "Tabulating layer novelty: {wildcards.novelty}"
    shell:
        "tlm-repro novelty-table {params.toy} --out {output.csv:q} {input:q} > {log:q} 2>&1"


rule niah_table:
    input:
        needle_evaluations,
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
    params:
        view=needle_view,
    message:
        "Tabulating needle-in-a-haystack"
    shell:
        "tlm-repro niah-table --view {params.view:q} --out {output.csv:q} {input:q} > {log:q} 2>&1"


rule figure:
    input:
        experiment_evaluations,
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
    params:
        view=experiment_view,
    message:
        "Drawing {wildcards.experiment}"
    shell:
        "tlm-repro figure --view {params.view:q} --out {output.svg:q} {input:q} > {log:q} 2>&1"


rule trend_figure:
    input:
        trend_evaluations,
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
    params:
        views=trend_views,
    message:
        "Drawing {wildcards.trend}"
    shell:
        "tlm-repro trend-figure --views {params.views:q} --out {output.svg:q} {input:q} > {log:q} 2>&1"


rule niah_figure:
    input:
        heat_map_evaluations,
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
    params:
        view=heat_map_view,
    message:
        "Drawing the heat maps of {wildcards.model}"
    shell:
        "tlm-repro niah-figure --view {params.view:q} --out {output.svg:q} {input:q} > {log:q} 2>&1"


rule allocation_figure:
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
    params:
        view=allocation_view,
    message:
        "Drawing the widths of the allocations"
    shell:
        "tlm-repro allocation-figure --view {params.view:q} --out {output.svg:q} > {log:q} 2>&1"


rule novelty_figure:
    input:
        NOVELTY_FILES,
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
    params:
        toy=toy_option,
    message:
        "Drawing layer novelty: {wildcards.novelty}"
    shell:
        "tlm-repro novelty-figure {params.toy} --out {output.svg:q} {input:q} > {log:q} 2>&1"


rule claims:
    input:
        evaluations=ALL_EVALUATIONS,
        novelty=NOVELTY_FILES,
    output:
        json="results/claims.json",
        markdown=report("results/claims.md", caption="../report/claims.rst", category="Claims"),
    log:
        "logs/claims.log",
    params:
        views=all_views,
    message:
        "Judging the claims"
    shell:
        "tlm-repro claims --views {params.views:q} --out {output.json:q} {input:q} > {log:q} 2>&1"


rule html_report:
    input:
        tables=TABLES,
        figures=FIGURES,
        claims="results/claims.json",
        evaluations=ALL_EVALUATIONS,
        novelty=NOVELTY_FILES,
    output:
        "results/report.html",
    log:
        "logs/report.log",
    params:
        config=whole_config,
        views=all_views,
        figures=figure_options,
    message:
        "Writing {output}"
    shell:
        "tlm-repro report --config {params.config:q} --views {params.views:q} {params.figures}"
        " --out {output:q} {input.evaluations:q} {input.novelty:q} > {log:q} 2>&1"


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
