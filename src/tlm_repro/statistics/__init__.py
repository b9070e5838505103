"""Standard errors, intervals, paired differences. No pandas here."""
