// Renders a chart as Helm does, with the same template engine and functions, for tests and for deploy/manifests.
//
//	renderer CHART NAMESPACE [VALUES-FILE...]          all templates but the notes
//	renderer -notes CHART NAMESPACE [VALUES-FILE...]   the notes
//
// It has none of Helm's functions that read a cluster, the environment or files: a chart that uses one fails here.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type object = map[string]interface{}

func main() {
	arguments := os.Args[1:]
	notes := len(arguments) > 0 && arguments[0] == "-notes"
	if notes {
		arguments = arguments[1:]
	}
	if len(arguments) < 2 {
		fail(errors.New("usage: renderer [-notes] CHART NAMESPACE [VALUES-FILE...]"))
	}
	text, err := render(arguments[0], arguments[1], arguments[2:], notes)
	if err != nil {
		fail(err)
	}
	os.Stdout.WriteString(text)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func render(chart, namespace string, valueFiles []string, notes bool) (string, error) {
	description, values := object{}, object{}
	if err := read(filepath.Join(chart, "Chart.yaml"), description); err != nil {
		return "", err
	}
	for _, path := range append([]string{filepath.Join(chart, "values.yaml")}, valueFiles...) {
		more := object{}
		if err := read(path, more); err != nil {
			return "", err
		}
		merge(values, more)
	}
	about := object{"Name": description["name"], "Version": description["version"], "AppVersion": description["appVersion"]}
	release := object{"Name": description["name"], "Namespace": namespace, "Service": "kubectl"}
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return "", err
	}
	all := template.New("").Option("missingkey=zero")
	if _, err := all.Funcs(functions(all)).ParseFiles(paths...); err != nil {
		return "", err
	}
	documents := []string{}
	for _, path := range paths { // Glob sorts them.
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") || (name == "NOTES.txt") != notes {
			continue
		}
		var text bytes.Buffer
		if err := all.ExecuteTemplate(&text, name, object{"Values": values, "Chart": about, "Release": release}); err != nil {
			return "", err
		}
		rendered := strings.ReplaceAll(text.String(), "<no value>", "")
		if strings.TrimSpace(rendered) != "" {
			documents = append(documents, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(rendered), "---"))+"\n")
		}
	}
	return strings.Join(documents, "---\n"), nil
}

func read(path string, into object) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(data, &into)
}

// As Helm does: objects are merged, all else is replaced, and null removes a key.
func merge(into, more object) {
	for key, value := range more {
		below, isObject := value.(object)
		if present, ok := into[key].(object); ok && isObject {
			merge(present, below)
		} else if value == nil {
			delete(into, key)
		} else {
			into[key] = value
		}
	}
}

func functions(all *template.Template) template.FuncMap {
	found := sprig.TxtFuncMap()
	for _, name := range []string{"env", "expandenv", "genCA", "genSelfSignedCert", "genSignedCert", "getHostByName"} {
		delete(found, name)
	}
	found["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	found["toYaml"] = func(value interface{}) (string, error) {
		data, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(data), "\n"), err
	}
	found["toJson"] = func(value interface{}) (string, error) {
		data, err := json.Marshal(value)
		return string(data), err
	}
	found["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	return found
}
