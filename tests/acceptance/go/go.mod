module acceptance

go 1.18

require github.com/Azure/go-amqp v1.6.0
