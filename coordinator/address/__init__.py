"""What an address is called, of which kind it is and which groups get its messages."""
