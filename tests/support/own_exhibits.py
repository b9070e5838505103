"""A user's file with exhibits: a table with a figure, and a family of figures."""

SOURCE = '''"""Losses of Table 2's runs."""

from tlm_repro.reporting.exhibit import Exhibit


class Losses(Exhibit):
    name = "losses"
    title = "Losses of Table 2"
    caption = "Held-out loss of each run of Table 2."
    experiments = ("main",)

    def table(self, evidence):
        import pandas as pd

        cells = evidence.views["main"].cells
        losses = [evidence.results.find(cell.run, "val_loss").value for cell in cells]
        return pd.DataFrame({"run": [cell.run for cell in cells], "loss": losses, "toy": evidence.toy})

    def figure(self, evidence):
        from tlm_repro.reporting.style import blank, theme

        frame = self.table(evidence)
        with theme():
            drawing = blank(4, 3, toy=evidence.toy)
            drawing.subplots().plot(range(len(frame)), frame["loss"], marker="o")
        return drawing


class PerArchitecture(Exhibit):
    name = "losses-{architecture}"
    title = "Losses of {architecture}"
    caption = "Held-out loss of the {architecture} runs of Table 2."
    experiments = ("main",)

    def figure(self, evidence):
        return Losses().figure(evidence)
'''
