# Snakemake looks here first. An included file's default target doesn't count: hence its name.
include: "workflow/Snakefile"


workflow.default_target = "all"
