"""Where commands can be launched; one file per place, from an order to files and command lines."""
