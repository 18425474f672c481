"""Commands around runs. They read the files of an experiment and import no worker."""
