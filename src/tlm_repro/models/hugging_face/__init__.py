"""The decoder as transformers' classes, for loading, saving, generating and exporting. Import it only for these."""
