module rie

go 1.19
